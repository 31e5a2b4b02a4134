"""Records of every type beyond 512 KiB through writer, cas, readers and groups, on the broker in memory with a store in memory."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

import anyio
import msgpack
import pytest

from schemas.arrays import pack_i4
from schemas.deadletter import DeadLetter
from schemas.errors import MissingBlob
from schemas.session import Cancel, Request, Sampling
from schemas.topics import DEADLETTER, SESSIONS, TOPICS, TRAINING, TRAJECTORIES, Topic
from schemas.training import Run
from schemas.trajectory import Trajectory
from streams.blobs import INLINE_BYTES, Blobs, has_reference
from streams.blobstore import BlobStore, Reference
from streams.broker import Outgoing
from streams.cas import open_cas
from streams.codec import encode
from streams.inbox import READ_BYTES
from streams.log import Log
from streams.memory import MemoryBroker
from tests.golden.records import WIRE
from tests.unit.workers.running import append, memory_log

pytestmark = pytest.mark.anyio

TOKENS = pack_i4(range(200_000))
WAIT_S = 20.0


@pytest.fixture
async def log() -> Log:
    return replace(await memory_log(1), blobs=Blobs(f"memory://{secrets.token_hex(4)}"))


def prompt(nonce: bytes = b"n") -> Request:
    return Request(session=0, nonce=nonce, tokens=TOKENS, sampling=Sampling(max_tokens=1))


def trajectory(close: int, size_bytes: int = INLINE_BYTES) -> Trajectory:
    return Trajectory(session=0, close=close, payload={"text": "x" * size_bytes})


def anew(log: Log) -> Log:
    """The same log as another process sees it: with nothing in memory."""
    return replace(log, blobs=Blobs())


async def lose_blobs(log: Log) -> None:
    for stored in await log.blobs.find():
        await log.blobs.remove(stored)


def wire_messages(log: Log, topic: Topic) -> list[Any]:
    assert isinstance(log.broker, MemoryBroker)
    return log.broker.log(log.place(topic, 0)).read(0, 100, committed=False)[0]


@pytest.mark.parametrize(("name", "schema", "wire", "record"), WIRE, ids=[row[2]["type"] for row in WIRE])
async def test_every_record_type_may_grow(
    log: Log, monkeypatch: pytest.MonkeyPatch, name: str, schema: str, wire: Any, record: Any
) -> None:
    """As if any of them were large."""
    monkeypatch.setattr("streams.blobs.INLINE_BYTES", 1)
    topic = TOPICS[name]
    if topic.committed:
        async with open_cas(log, topic) as cas:
            await cas.write([(0, record)])
    else:
        async with log.writer() as writer:
            await (await writer.send(topic, 0, record))
    assert all(has_reference(message) for message in wire_messages(log, topic))
    async with anew(log).follow_all(topic) as reader:
        assert [entry.record for entry in await reader.read_to_end([0])] == [record]


async def test_a_prompt_of_200_000_tokens_is_a_small_message(log: Log) -> None:
    async with log.writer() as writer:
        await (await writer.send(SESSIONS, 0, prompt()))
    (message,) = wire_messages(log, SESSIONS)
    assert len(message.value) < 300
    async with anew(log).follow_all(SESSIONS) as reader:
        (entry,) = await reader.read(timeout_s=WAIT_S)
    assert entry.record == prompt()


async def test_a_small_record_does_not_overtake_a_large_one(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    storing = anyio.Event()
    check_in = Blobs.check_in

    async def slow(blobs: Blobs, message: Any) -> Any:
        if len(message.value) > INLINE_BYTES:
            storing.set()
            await anyio.sleep(0.05)
        return await check_in(blobs, message)

    monkeypatch.setattr(Blobs, "check_in", slow)
    async with log.writer() as writer, anyio.create_task_group() as tasks:
        tasks.start_soon(writer.send, SESSIONS, 0, prompt())
        await storing.wait()
        await (await writer.send(SESSIONS, 0, Cancel(session=0, request=0)))
    assert [dict(message.headers)["type"] for message in wire_messages(log, SESSIONS)] == [b"Request", b"Cancel"]


async def test_records_of_other_partitions_do_not_wait_for_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    log = replace(await memory_log(2), blobs=Blobs(f"memory://{secrets.token_hex(4)}"))
    storing, stored = anyio.Event(), anyio.Event()
    put = Blobs.put

    async def stuck(blobs: Blobs, content: bytes) -> Reference:
        storing.set()
        await stored.wait()
        return await put(blobs, content)

    monkeypatch.setattr(Blobs, "put", stuck)
    async with log.writer() as writer, anyio.create_task_group() as tasks:
        tasks.start_soon(writer.send, SESSIONS, 0, prompt())
        await storing.wait()
        with anyio.fail_after(WAIT_S):
            await (await writer.send(SESSIONS, 1, Cancel(session=0, request=0)))
        stored.set()


async def test_a_blob_is_whole_before_its_record_is_sent(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    write, before = BlobStore.write, []

    def observed(store: BlobStore, content: bytes, now_s: float) -> Reference:
        before.append(len(wire_messages(log, TRAJECTORIES)))
        return write(store, content, now_s)

    monkeypatch.setattr(BlobStore, "write", observed)
    async with log.writer() as writer:
        for close in range(3):
            await (await writer.send(TRAJECTORIES, 0, trajectory(close)))
    assert before == [0, 1, 2]


async def test_cas_writes_large_and_small_records_together(log: Log) -> None:
    run = Run(run="large", settings={"text": "x" * INLINE_BYTES})
    async with open_cas(log, TRAINING) as cas:
        assert await cas.write([(0, run), (0, Run(run="small"))]) == [0, 1]
    async with open_cas(anew(log), TRAINING) as cas:
        assert [entry.record for entry in cas.history] == [run, Run(run="small")]
        assert len({entry.nonce for entry in cas.history}) == 1


@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
async def test_r4_a_missing_blob_stops_readers_that_must_not_skip_and_is_buried_elsewhere(log: Log, topic: Topic) -> None:
    record = next(row[3] for row in WIRE if row[0] == topic.name)
    assert isinstance(log.broker, MemoryBroker)
    sound, stored = encode(log.name(topic), 0, record), await log.blobs.put(b"x" * 10)
    value = msgpack.packb({"uri": stored.uri, "sha256": stored.sha256, "bytes": stored.bytes})
    log.broker.append(Outgoing(sound.topic, 0, sound.key, value, (*sound.headers, ("blob", b"1"))))
    append(log, topic, 0, record)
    await lose_blobs(log)
    async with anew(log).follow_all(topic) as reader:
        if topic.name in ("sessions", "training", "tasks", "grants"):
            with pytest.raises(MissingBlob, match=rf"{topic.name}\[0\]@0"):
                await reader.read(timeout_s=WAIT_S)
            return
        assert [entry.offset for entry in await reader.read(timeout_s=WAIT_S)] == [1]
    letter = msgpack.unpackb(wire_messages(log, DEADLETTER)[-1].value)
    assert (letter["topic"], letter["offset"], letter["original_value"], letter["original_headers"]["blob"]) == (topic.name, 0, value, b"1")
    assert "does not exist" in letter["reason"]


async def test_bytes_too_large_for_a_dead_letter_are_buried_whole(log: Log) -> None:
    assert isinstance(log.broker, MemoryBroker)
    garbage = b"\xc1" * 999_000
    sound = encode(log.name(TRAJECTORIES), 0, trajectory(1, 10))
    log.broker.append(Outgoing(sound.topic, 0, b"k", garbage, sound.headers))
    async with log.follow_all(TRAJECTORIES) as reader:
        assert await reader.read(timeout_s=WAIT_S) == []
    async with anew(log).follow_all(DEADLETTER) as reader:
        (entry,) = await reader.read(timeout_s=WAIT_S)
    assert isinstance(entry.record, DeadLetter)
    assert entry.record.original_value == garbage


async def test_a_backlog_of_large_records_comes_in_parts_bounded_in_bytes(log: Log) -> None:
    size_bytes, count = READ_BYTES // 4, 9
    async with log.writer() as writer:
        for close in range(count):
            await (await writer.send(TRAJECTORIES, 0, trajectory(close, size_bytes)))
        await (await writer.send(TRAJECTORIES, 0, trajectory(count, 1)))
    async with anew(log).follow_all(TRAJECTORIES) as reader:
        parts, positions = [], []
        while (position := reader.position(0)) < count + 1:
            positions.append(position)
            parts.append([entry.offset for entry in await reader.read(timeout_s=WAIT_S)])
    assert parts == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9]]
    assert positions == [0, 3, 6]


async def test_a_cancelled_read_loses_nothing(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    async with log.writer() as writer:
        for close in range(3):
            await (await writer.send(TRAJECTORIES, 0, trajectory(close)))
    get, calls = Blobs.get, 0

    async def stuck_once(blobs: Blobs, reference: Reference) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 2:
            await anyio.sleep(WAIT_S)
        return await get(blobs, reference)

    monkeypatch.setattr(Blobs, "get", stuck_once)
    async with anew(log).follow_all(TRAJECTORIES) as reader:
        with anyio.move_on_after(0.1) as limit:
            await reader.read(timeout_s=WAIT_S)
        assert limit.cancelled_caught
        assert reader.position(0) == 0
        assert [entry.offset for entry in await reader.read(timeout_s=WAIT_S)] == [0, 1, 2]


async def test_what_was_fetched_of_a_partition_that_is_removed_or_moved_is_not_returned(log: Log) -> None:
    async with log.writer() as writer:
        for close in range(3):
            await (await writer.send(TRAJECTORIES, 0, trajectory(close, READ_BYTES)))
    async with anew(log).follow_all(TRAJECTORIES) as reader:
        assert [entry.offset for entry in await reader.read(timeout_s=WAIT_S)] == [0]
        reader.add(0, 2)
        assert reader.position(0) == 2
        assert [entry.offset for entry in await reader.read(timeout_s=WAIT_S)] == [2]
        reader.add(0, 0)
        assert [entry.offset for entry in await reader.read(timeout_s=WAIT_S)] == [0]
        reader.remove(0)
        assert await reader.read(timeout_s=0.01) == []


async def test_a_member_drops_what_it_fetched_before_a_rebalance(log: Log) -> None:
    async with log.writer() as writer:
        for close in range(3):
            await (await writer.send(TRAJECTORIES, 0, trajectory(close, READ_BYTES)))
    reader = anew(log)
    async with reader.join(TRAJECTORIES, "group") as member:
        assert [entry.offset for entry in await member.read(timeout_s=WAIT_S)] == [0]
        async with reader.join(TRAJECTORIES, "group") as second:
            assert member.partitions() | second.partitions() == {0}
        assert [entry.offset for entry in await member.read(timeout_s=WAIT_S)] == [0], "from what is committed"
        assert await member.commit({0: 1})
        member.seek(0, 2)
        assert [entry.offset for entry in await member.read(timeout_s=WAIT_S)] == [2]
