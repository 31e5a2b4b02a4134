"""Which blobs are collected: those of records that retention deleted, none of those that stand, whoever refers to them."""

from __future__ import annotations

import secrets
from dataclasses import replace

import msgpack
import pytest

from infra.blobs.collect import collect, garbage, holders
from schemas.deadletter import DeadLetter
from schemas.errors import TopicMismatch, UnknownRecord
from schemas.topics import DEADLETTER, TOPICS, TRAINING, TRAJECTORIES
from schemas.training import Run
from schemas.trajectory import Trajectory
from streams.blobs import INLINE_BYTES, Blobs
from streams.blobstore import Stored
from streams.broker import Outgoing, Place
from streams.cas import open_cas
from streams.codec import encode
from streams.log import Log
from streams.memory import MemoryBroker
from tests.golden.records import WIRE
from tests.unit.workers.running import append, memory_log

pytestmark = pytest.mark.anyio

NOON_S = 1_796_126_400.0
HOUR_S = 3600.0
GRACE_S = 2 * HOUR_S
LATER_S = NOON_S + HOUR_S + GRACE_S
"""When what was written at noon, in the hour that ends at one, is old enough."""


@pytest.fixture
async def log() -> Log:
    return replace(await memory_log(2), blobs=Blobs(f"memory://{secrets.token_hex(4)}", clock=lambda: NOON_S))


def silent(topic: str, count: int) -> None:
    """Progress that nobody looks at."""


async def write_large(log: Log, partition: int, close: int) -> None:
    async with log.writer() as writer:
        await (await writer.send(TRAJECTORIES, partition, Trajectory(session=0, close=close, payload={"text": "x" * INLINE_BYTES})))


async def sizes(log: Log) -> int:
    return len(await log.blobs.find())


def broker(log: Log) -> MemoryBroker:
    assert isinstance(log.broker, MemoryBroker)
    return log.broker


def test_what_is_garbage() -> None:
    stored = [Stored(name=name, bytes=1, written_before_s=at_s) for name, at_s in (("old", 10.0), ("held", 10.0), ("young", 11.0))]
    assert [blob.name for blob in garbage(stored, {"held": None}, 110.0, 100.0)] == ["old"]


async def test_a_blob_goes_once_retention_has_deleted_its_record(log: Log) -> None:
    for close in (1, 2):
        await write_large(log, 1, close)
    assert await collect(log, LATER_S, GRACE_S, silent) == []
    assert await sizes(log) == 2
    broker(log).truncate(log.place(TRAJECTORIES, 1), 1)
    (gone,) = await collect(log, LATER_S, GRACE_S, silent)
    assert gone.bytes > INLINE_BYTES
    assert await collect(log, LATER_S, GRACE_S, silent) == [], "again"
    async with replace(log, blobs=Blobs()).follow_all(TRAJECTORIES) as reader:
        (entry,) = await reader.read_to_end([0, 1])
    assert isinstance(entry.record, Trajectory)
    assert entry.record.close == 2


async def test_a_dry_run_removes_nothing(log: Log) -> None:
    await log.blobs.put(b"nobody's")
    assert len(await collect(log, LATER_S, GRACE_S, silent, dry_run=True)) == 1
    assert await sizes(log) == 1


async def test_a_blob_whose_record_may_still_come_stays(log: Log) -> None:
    await log.blobs.put(b"just written")
    assert await collect(log, LATER_S - 1, GRACE_S, silent) == []
    assert await sizes(log) == 1
    assert len(await collect(log, LATER_S, GRACE_S, silent)) == 1


@pytest.mark.parametrize("name", TOPICS)
async def test_records_of_every_topic_hold_their_blobs(log: Log, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("streams.blobs.INLINE_BYTES", 1)
    record = next(row[3] for row in WIRE if row[0] == name)
    broker(log).append(await log.blobs.check_in(encode(log.name(TOPICS[name]), 0, record)))
    assert await collect(log, LATER_S, GRACE_S, silent) == []
    (held,) = (await holders(log, silent)).values()
    assert held == Place(name, 0)


async def test_a_dead_letter_holds_the_blob_of_its_original(log: Log) -> None:
    """Also where the dead letter is large itself."""
    for padding in (b"", b"x" * INLINE_BYTES):
        original = await log.outgoing(TRAJECTORIES, 0, Trajectory(session=0, close=1, payload={"text": "x" * (1 << 20)}))
        letter = DeadLetter(
            topic="trajectories", partition=0, offset=0, reason="r", reader="reward", original_key=padding,
            original_value=original.value or b"", original_headers=dict(original.headers),
        )  # fmt: skip
        async with log.writer() as writer:
            await (await writer.send(DEADLETTER, 0, letter))
    assert await sizes(log) == 2
    assert await collect(log, LATER_S, GRACE_S, silent) == []
    broker(log).truncate(log.place(DEADLETTER, 0), 2)
    assert len(await collect(log, LATER_S, GRACE_S, silent)) == 2


async def test_records_of_an_open_transaction_hold_their_blobs(log: Log) -> None:
    message = await log.outgoing(TRAINING, 0, Run(run="r", settings={"text": "x" * INLINE_BYTES}))
    async with broker(log).transaction("t") as transaction:
        transaction.stage([message])
        assert await collect(log, LATER_S, GRACE_S, silent) == []
        transaction.finish("committed")
    async with open_cas(log, TRAINING) as cas:
        assert len(cas.history) == 1


async def test_nothing_goes_while_a_topic_is_missing(log: Log) -> None:
    await log.blobs.put(b"nobody's")
    await broker(log).delete_topics([log.name(DEADLETTER)])
    with pytest.raises(TopicMismatch, match="nothing is removed"):
        await collect(log, LATER_S, GRACE_S, silent)
    assert await sizes(log) == 1


@pytest.mark.parametrize("is_buried", [False, True])
async def test_nothing_goes_while_a_reference_is_not_understood(log: Log, is_buried: bool) -> None:
    await log.blobs.put(b"perhaps that one's")
    sound, value = encode(log.name(TRAJECTORIES), 0, Trajectory(session=0, close=1)), msgpack.packb({"at": "?"})
    headers = (*sound.headers, ("blob", b"2"))
    if is_buried:
        letter = DeadLetter(
            topic="trajectories", partition=0, offset=0, reason="r", reader="a", original_value=value, original_headers=dict(headers)
        )  # fmt: skip
        append(log, DEADLETTER, 0, letter)
    else:
        broker(log).append(Outgoing(sound.topic, 0, b"k", value, headers))
    with pytest.raises(UnknownRecord):
        await collect(log, LATER_S, GRACE_S, silent)
    assert await sizes(log) == 1


async def test_what_is_no_record_and_no_reference_is_passed(log: Log) -> None:
    for topic in TOPICS.values():
        name = log.name(topic)
        broker(log).append(Outgoing(name, 0, b"k", b"\xc1", ()))
        broker(log).append(Outgoing(name, 0, b"k", b"\xc1", (("blob", b"1"),)))
        broker(log).append(Outgoing(name, 0, b"k", None, ()))
    await log.blobs.put(b"nobody's")
    assert len(await collect(log, LATER_S, GRACE_S, silent)) == 1


async def test_a_store_reached_by_another_name_is_the_same_store(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount, a link: what counts is the name of the blob, not how the writer spelt the way to it."""
    await write_large(log, 0, 1)
    monkeypatch.setattr(log.blobs._require_store(), "_root", "file:///somewhere/else")
    assert await collect(log, LATER_S, GRACE_S, silent) == []


async def test_a_young_store_costs_no_reading_of_the_log(log: Log) -> None:
    await write_large(log, 0, 1)
    told: list[str] = []
    assert await collect(log, NOON_S, GRACE_S, lambda topic, count: told.append(topic)) == []
    assert told == []
    assert append(log, DEADLETTER, 0, next(row[3] for row in WIRE if row[0] == "deadletter")) == 0
    await collect(log, LATER_S, GRACE_S, lambda topic, count: told.append(topic))
    assert told == ["deadletter", "the log", "deadletter"]
