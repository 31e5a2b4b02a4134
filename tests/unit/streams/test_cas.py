"""cas: every committed record is built upon the committed record before it, whoever is fenced, frozen or answered late."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest

from schemas.errors import BrokerUnavailable, SeamlessFlowError, Superseded
from schemas.grant import Grant
from schemas.task import Task
from schemas.topics import GRANTS, TASKS
from streams import cas
from streams.broker import Message, Place
from streams.cas import CasLog, open_cas
from streams.codec import Entry
from streams.log import Log
from streams.memory import CommitFault, MemoryBroker
from streams.topics import ensure_topics

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def memory() -> AsyncIterator[tuple[MemoryBroker, Log]]:
    broker = MemoryBroker()
    await ensure_topics(broker, "test.", 4)
    yield broker, Log(broker, "test.", "role")


def grant(number: int, built_on: int = -1) -> Grant:
    return Grant(partition=number, reason=str(built_on))


async def everything(log: Log) -> list[Entry[Grant]]:
    async with open_cas(log, GRANTS) as writer:
        return [entry for entry in writer.history if isinstance(entry.record, Grant)]  # type: ignore[misc]


async def test_a_writer_goes_on_from_its_own_records() -> None:
    async with memory() as (_, log), open_cas(log, GRANTS) as writer:
        first = await writer.write([(0, grant(1)), (0, grant(2))])
        second = await writer.write([(0, grant(3))])
        assert first[0] < first[1] < second[0]
        assert [entry.record.partition for entry in await everything(log)] == [1, 2, 3]


async def test_history_is_what_stood_before() -> None:
    async with memory() as (_, log):
        async with open_cas(log, GRANTS) as writer:
            await writer.write([(0, grant(1))])
        async with open_cas(log, GRANTS) as successor:
            assert [entry.record for entry in successor.history] == [grant(1)]
            await successor.write([(0, grant(2))])


async def test_a_zombie_loses_the_check() -> None:
    async with memory() as (_, log), open_cas(log, GRANTS) as zombie:
        await zombie.write([(0, grant(1))])
        async with open_cas(log, GRANTS) as successor:
            await successor.write([(0, grant(2))])
        with pytest.raises(Superseded):
            await zombie.write([(0, grant(3))])
        assert [entry.record.partition for entry in await everything(log)] == [1, 2]


async def test_a_successor_that_only_fenced_does_not_end_the_living_writer() -> None:
    async with memory() as (broker, log), open_cas(log, GRANTS) as writer:
        async with broker.transaction(log.group("cas.grants")):
            pass
        await writer.write([(0, grant(1))])
        assert len(await everything(log)) == 1


@pytest.mark.parametrize("fault", ["answer lost", "write lost"])
async def test_an_unknown_outcome_is_run_again_and_committed_once(fault: CommitFault) -> None:
    async with memory() as (broker, log), open_cas(log, GRANTS) as writer:
        broker.commit_faults.append(fault)
        await writer.write([(0, grant(1)), (0, grant(2))])
        await writer.write([(0, grant(3))])
        assert [entry.record.partition for entry in await everything(log)] == [1, 2, 3]


async def test_all_partitions_of_a_topic_are_checked() -> None:
    async with memory() as (_, log), open_cas(log, TASKS) as zombie:
        async with open_cas(log, TASKS) as successor:
            await successor.write([(7, Task(number=0, group=0, member=0, members=1))])
        with pytest.raises(Superseded):
            await zombie.write([(3, Task(number=0, group=0, member=0, members=1))])


async def test_r10_a_broker_that_never_answers_ends_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cas, "ATTEMPTS", 2)
    monkeypatch.setattr(cas, "PAUSE_S", 0.0)
    async with memory() as (broker, log), open_cas(log, GRANTS) as writer:
        broker.commit_faults.extend(["write lost"] * 2)
        with pytest.raises(BrokerUnavailable):
            await writer.write([(0, grant(1))])


async def test_what_a_failed_check_had_read_is_judged_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cas, "PAUSE_S", 0.0)
    async with memory() as (_, log), open_cas(log, GRANTS) as zombie:
        async with open_cas(log, GRANTS) as successor:
            await successor.write([(0, grant(2))])
        reader = zombie._reader.reader
        read, end, beyond = reader.read, reader.end, iter([1])

        async def read_or_fail(**how: Any) -> list[Message]:
            if messages := await read(timeout_s=0.0, limit=1000):
                return messages
            raise BrokerUnavailable("gone before the end")

        async def end_not_yet_reached(place: Place) -> int:
            return await end(place) + next(beyond, 0)

        monkeypatch.setattr(reader, "read", read_or_fail)
        monkeypatch.setattr(reader, "end", end_not_yet_reached)
        with pytest.raises(Superseded):
            await zombie.write([(0, grant(3))])


async def compete(log: Log, name: int, lost: list[int]) -> None:
    """A writer that writes what it believes to be the last offset, and begins anew when it is superseded."""
    for _ in range(6):
        try:
            async with open_cas(log, GRANTS) as writer:
                await write_on(writer, name)
        except SeamlessFlowError:
            lost.append(name)


async def write_on(writer: CasLog, name: int) -> None:
    built_on = writer.history[-1].offset if writer.history else -1
    for _ in range(3):
        built_on = (await writer.write([(0, grant(name, built_on))]))[-1]


@pytest.mark.parametrize("seed", range(10))
async def test_every_record_was_built_upon_its_predecessor(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    print("seed", seed)
    monkeypatch.setattr(cas, "PAUSE_S", 0.001)
    random = Random(seed)
    async with memory() as (broker, log):
        broker.commit_faults.extend(random.choice([None, None, "answer lost", "write lost"]) for _ in range(30))
        lost: list[int] = []
        async with anyio.create_task_group() as tasks:
            for name in range(3):
                tasks.start_soon(compete, log, name, lost)
        broker.commit_faults.clear()
        entries = await everything(log)
    assert len(entries) > 10
    assert [int(entry.record.reason) for entry in entries] == [-1, *(entry.offset for entry in entries[:-1])]
