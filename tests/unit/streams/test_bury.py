"""R4 for every way to read: what is no record is buried and the reader goes on; newer records stop it where skipping would be wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import msgpack
import pytest

from schemas.deadletter import DeadLetter
from schemas.errors import UnknownRecord
from schemas.record import Record
from schemas.session import Close
from schemas.task import Task
from schemas.topics import DEADLETTER, SESSIONS, TASKS, Topic
from streams.broker import Headers, Outgoing
from streams.cas import open_cas
from streams.log import Log
from streams.memory import MemoryBroker
from streams.table import open_table
from tests.unit.workers.running import append, memory_log, records

pytestmark = pytest.mark.anyio

NEWER: list[tuple[bytes, bytes]] = [(b"Thought", b"1.0"), (b"Task", b"2.0")]
"""Type and schema: a type that nobody knows, and another major of one that everybody does."""


async def follow(log: Log, topic: Topic) -> list[Record]:
    async with log.follow_all(topic) as reader:
        return [entry.record for entry in await reader.read_to_end([0])]


async def join(log: Log, topic: Topic) -> list[Record]:
    found: list[Record] = []
    async with log.join(topic, "g") as member:
        with anyio.fail_after(20):
            while len(found) < 2:
                found += [entry.record for entry in await member.read(timeout_s=1)]
    return found


async def cas(log: Log, topic: Topic) -> list[Record]:
    async with open_cas(log, topic) as writer:
        return [entry.record for entry in writer.history]


async def table(log: Log, topic: Topic) -> list[Record]:
    async with open_table(log, topic) as found:
        return [entry.record for entry in found.rows.values()]


READINGS = [follow, join, cas, table]
Reading = Callable[[Log, Topic], Awaitable[list[Record]]]


def task(number: int) -> Task:
    return Task(number=number, group=number, member=0, members=1)


def plant(log: Log, topic: Topic, value: bytes | None, headers: Headers) -> int:
    assert isinstance(log.broker, MemoryBroker)
    return log.broker.append(Outgoing(log.name(topic), 0, b"key", value, headers))


@pytest.mark.parametrize("read", READINGS)
async def test_what_is_no_record_is_buried_once_with_its_place_and_the_rest_is_read(read: Reading) -> None:
    log = await memory_log(role="tester")
    headers = (("type", b"Task"), ("schema", b"1.0"))
    append(log, TASKS, 0, task(1))
    planted = [
        plant(log, TASKS, b"\xc1", ()), plant(log, TASKS, b"\xc1", headers), plant(log, TASKS, msgpack.packb({"type": "Task"}), headers),
        *(plant(log, TASKS, b"\x80", (("type", kind), ("schema", schema))) for kind, schema in NEWER),
    ]  # fmt: skip
    append(log, TASKS, 0, task(2))
    assert await read(log, TASKS) == [task(1), task(2)]
    letters = records(log, DEADLETTER, DeadLetter)
    assert [(each.topic, each.partition, each.offset, each.reader) for each in letters] == [("tasks", 0, n, "tester") for n in planted]
    assert [each.original_value for each in letters][:2] == [b"\xc1", b"\xc1"]
    assert all(each.reason for each in letters)


@pytest.mark.parametrize("read", [follow, join])
@pytest.mark.parametrize(("kind", "schema"), [(b"Thought", b"1.0"), (b"Close", b"2.0")], ids=["type", "major"])
async def test_newer_records_stop_a_reader_of_sessions_and_nothing_is_buried(read: Reading, kind: bytes, schema: bytes) -> None:
    log = await memory_log()
    append(log, SESSIONS, 0, Close(session=0))
    plant(log, SESSIONS, b"\x80", (("type", kind), ("schema", schema)))
    append(log, SESSIONS, 0, Close(session=1))
    with pytest.raises(UnknownRecord):
        await read(log, SESSIONS)
    assert records(log, DEADLETTER, DeadLetter) == []
