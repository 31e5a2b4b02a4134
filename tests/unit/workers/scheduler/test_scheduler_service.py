"""The scheduler on the broker in memory: its clock, its takeover, and simulated nodes that answer."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from schemas.errors import Superseded
from schemas.grant import Grant
from schemas.node import Control, NodeStatus, Tick
from schemas.topics import GRANTS, NODES
from streams.cas import open_cas
from streams.log import Log
from streams.service import first_error
from tests.unit.workers.running import append, entries, memory_log, records, running, until
from workers.scheduler.service import role
from workers.scheduler.settings import SchedulerSettings

pytestmark = pytest.mark.anyio

QUICK = SchedulerSettings(tick_s=0.02)


def report(log: Log, node: str, incarnation: str, **more: Any) -> None:
    append(log, NODES, 0, NodeStatus(node=node, incarnation=incarnation, tags=["rollout"], state="serving", **more))


def owners(log: Log) -> dict[int, str]:
    return {grant.partition: grant.incarnation for grant in records(log, GRANTS, Grant)}


def own_ticks(log: Log) -> list[Tick]:
    return records(log, NODES, Tick)


async def test_a_node_that_reports_is_granted_all_in_one_transaction() -> None:
    log = await memory_log(partitions=4)
    async with running(role(QUICK), log):
        report(log, "a", "a1")
        await until(lambda: owners(log) == dict.fromkeys(range(4), "a1"), "four grants")
    offsets = [entry.offset for entry in entries(log, GRANTS, Grant)]
    assert offsets == [0, 1, 2, 3]


async def test_a_silent_node_is_dead_after_four_ticks_of_this_scheduler() -> None:
    log = await memory_log(partitions=4)
    async with running(role(QUICK), log):
        report(log, "a", "a1")
        await until(lambda: owners(log) == dict.fromkeys(range(4), "a1"), "a has all")
        report(log, "b", "b1")
        last = entries(log, NODES, NodeStatus)[-1].offset
        await until(lambda: len([e for e in entries(log, NODES, Tick) if e.offset > last]) >= 3, "three ticks")
        report(log, "b", "b1")
        await until(lambda: owners(log) == dict.fromkeys(range(4), "b1"), "b has all")
    taken = [entry.record for entry in entries(log, GRANTS, Grant) if entry.record.incarnation == "b1"]
    assert {grant.cause for grant in taken} == {"dead"}


async def test_pause_and_resume() -> None:
    log = await memory_log(partitions=2)
    async with running(role(QUICK), log):
        report(log, "a", "a1")
        await until(lambda: owners(log) == {0: "a1", 1: "a1"}, "a has all")
        append(log, NODES, 0, Control(command="pause", reason="lunch"))
        await until(lambda: owners(log) == {0: "", 1: ""}, "all revoked")
        report(log, "a", "a1", grants_seen=5)
        append(log, NODES, 0, Control(command="resume"))
        await until(lambda: owners(log) == {0: "a1", 1: "a1"}, "a has all again")
    assert [grant.cause for grant in records(log, GRANTS, Grant)] == ["joined", "joined", "moved", "moved", "moved", "moved"]


async def test_a_second_scheduler_takes_over_and_the_first_ends() -> None:
    log = await memory_log(partitions=2)
    failures: list[BaseException] = []

    async def first() -> None:
        try:
            async with running(role(QUICK), log):
                started.set()
                await anyio.sleep_forever()
        except* Superseded as group:
            failures.append(first_error(group))

    started = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(first)
        await started.wait()
        report(log, "a", "a1")
        await until(lambda: owners(log) == {0: "a1", 1: "a1"}, "the first one grants")
        async with running(role(QUICK), log):
            await until(lambda: failures, "the first one ends")
            report(log, "a", "a2")
            await until(lambda: owners(log) == {0: "a2", 1: "a2"}, "the second one grants")
    assert isinstance(failures[0], Superseded)


async def test_one_that_was_passed_by_fails_the_check_and_writes_nothing() -> None:
    log = await memory_log(partitions=2)

    async def passed_by() -> None:
        async with running(role(QUICK), log):
            await until(lambda: own_ticks(log), "a tick")
            async with open_cas(log, GRANTS) as other:
                await other.write([(0, Grant(partition=0, node="z", incarnation="z1"))])
            report(log, "a", "a1")
            await anyio.sleep_forever()

    with pytest.raises(BaseExceptionGroup) as caught:
        await passed_by()
    assert isinstance(first_error(caught.value), Superseded)
    assert owners(log) == {0: "z1"}


async def test_a_restarted_scheduler_goes_on_with_the_grants_that_stand() -> None:
    log = await memory_log(partitions=4)
    async with running(role(QUICK), log):
        report(log, "a", "a1")
        await until(lambda: len(owners(log)) == 4, "four grants")
    async with running(role(QUICK), log):
        before = len(own_ticks(log))
        report(log, "a", "a1", partitions=[0, 1, 2, 3], grants_seen=4)
        await until(lambda: len(own_ticks(log)) > before + 2, "three ticks")
    assert len(records(log, GRANTS, Grant)) == 4


async def test_ticks_are_one_at_a_time_and_count_when_read_back() -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    broker.held = True  # type: ignore[attr-defined]
    async with running(role(QUICK), log):
        await anyio.wait_all_tasks_blocked()
        waiting = [count for outbox in broker.outboxes for count in outbox.waiting().values()]  # type: ignore[attr-defined]
        assert waiting == [1]
        broker.held = False  # type: ignore[attr-defined]
        for outbox in broker.outboxes:  # type: ignore[attr-defined]
            for place in list(outbox.waiting()):
                outbox.land(place)
        await until(lambda: len(own_ticks(log)) >= 3, "three ticks")
    assert [tick.number for tick in own_ticks(log)] == list(range(1, len(own_ticks(log)) + 1))
