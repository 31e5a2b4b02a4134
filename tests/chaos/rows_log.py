"""A log that holds what a correct system would not write there, or no longer what it wrote: doubles, wrong order, corrupt bytes."""

from __future__ import annotations

import secrets

import anyio
import anyio.to_thread
import msgpack
from confluent_kafka import KafkaException

from schemas.arrays import length, pack_f4, pack_i4
from schemas.deadletter import DeadLetter
from schemas.errors import UnknownRecord
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request, Sampling
from schemas.span import Span
from schemas.topics import DEADLETTER, SESSIONS, TOPICS
from streams.broker import Message
from tests.chaos.planting import LARGEST_BYTES, copies, delete_all, plant
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.seen import TOKENS_PER_VERSION, Key

KEY = b"planted"
IDLE_S = 4.0
LATE_TOKENS = 5
Headers = dict[str, bytes]


@row("every record of sessions is delivered twice", is_alone=True)
async def sessions_twice(stage: Stage) -> Happened:
    """As a producer without idempotence might: the same bytes again, in mid-work. Doubled Opens are sessions of their own, closed idle."""
    await stage.reconfigure("assembler", idle_s=IDLE_S)
    async with stage.agents(tokens=150) as work:
        await stage.under_way()
        count = await anyio.to_thread.run_sync(lambda: plant(stage.pipeline, copies(stage.pipeline, "sessions", {})))
    async with stage.agents(tokens=50) as more:
        count += await anyio.to_thread.run_sync(lambda: plant(stage.pipeline, copies(stage.pipeline, "sessions", {})))
    assert not work.broken + more.broken
    return Happened(f"{count} records stand there again")


@row("trajectories and scores are delivered twice", scene="loop")
async def trajectories_twice(stage: Stage) -> Happened:
    def again() -> int:
        return sum(plant(stage.pipeline, copies(stage.pipeline, topic, {})) for topic in ("trajectories", "scores"))

    count = await anyio.to_thread.run_sync(again)
    await stage.seen.more_steps(3)
    return Happened(f"{count} records stand there again")


@row("records out of order: a Close before the last span, a late Cancel, a Request after the Close")
async def out_of_order(stage: Stage) -> Happened:
    """Sessions written directly, as a gateway writes them: the first end wins, and nothing that comes later changes it."""
    seen = stage.seen
    early = await open_session(stage)
    request = await ask(stage, early, tokens=400)
    await seen.until(lambda: request in seen.running(least=10), "a request in mid-generation")
    accepted = await closed_too_early(stage, early, request)
    late = await open_session(stage)
    ended = await ask(stage, late, tokens=20)
    await seen.until(lambda: seen.request(ended).end is not None, "its end")
    await write(stage, late.partition, Cancel(session=late.offset, request=ended.offset))
    await write(stage, late.partition, Close(session=late.offset, nonce=secrets.token_bytes(8)))
    unheard = await ask(stage, late, tokens=20)
    await seen.until(lambda: not seen.unsettled(), "a Trajectory and a Score of both sessions")
    first_end = seen.request(ended).end
    assert first_end is not None
    assert first_end.why == "length", "the late Cancel counted"
    assert unheard.offset not in seen.session(late).requests, "a Request after the Close counted"
    written = sum(length(node.tokens) - node.prompt for node in seen.trajectories()[early].record.nodes)
    assert written == accepted, "tokens behind the Close counted"
    ignored = sum(span.start >= accepted for span in spans_of(stage, request))
    return Happened(f"{ignored} spans stand behind the Close and do not count; a Cancel and a Request came too late" if ignored else "")


async def closed_too_early(stage: Stage, session: Key, request: Key) -> int:
    """A Close while the owner is frozen, and the owner's next span behind it; answers how many tokens stood before the Close.

    The span is written here: whether the owner that wakes reads the Close or writes a span first is chance.
    """
    seen = stage.seen
    claim = seen.owners[session.partition]
    stage.pipeline.crew.freeze(claim.node)
    await write(stage, session.partition, Close(session=session.offset, nonce=secrets.token_bytes(8)))
    accepted = seen.request(request).accepted
    version = spans_of(stage, request)[-1].version
    first = version * TOKENS_PER_VERSION + accepted
    late = Span(
        session=session.offset, request=request.offset, epoch=claim.epoch, start=accepted, version=version, kv_version=version,
        tokens=pack_i4(range(first, first + LATE_TOKENS)), logprobs=pack_f4([-1.0] * LATE_TOKENS),
    )  # fmt: skip
    await write(stage, session.partition, late)
    stage.pipeline.crew.thaw(claim.node)
    return accepted


def spans_of(stage: Stage, request: Key) -> list[Span]:
    """The spans of a request, counted or not, in log order."""
    spans = stage.seen.all(SESSIONS, Span)
    return [entry.record for entry in spans if Key(entry.partition, entry.record.request) == request]


async def open_session(stage: Stage) -> Key:
    """A session without a gateway."""
    opened = Open(nonce=secrets.token_bytes(8), check=secrets.token_hex(3))
    return Key(0, await write(stage, 0, opened))


async def ask(stage: Stage, session: Key, tokens: int) -> Key:
    """A Request of a session; answers its place."""
    request = Request(
        session=session.offset, nonce=secrets.token_bytes(8), tokens=pack_i4([1, 2, 3]), sampling=Sampling(max_tokens=tokens)
    )  # fmt: skip
    return Key(session.partition, await write(stage, session.partition, request))


async def write(stage: Stage, partition: int, record: Record) -> int:
    """One record of `sessions`; answers its offset once it was read back."""
    async with stage.pipeline.log().writer() as writer:
        offset = await (await writer.send(SESSIONS, partition, record))
    await stage.seen.until(lambda: stage.seen.ledgers[partition].next > offset, "the record to be read back")
    return offset


def planted(topic: str, value: bytes | None, headers: Headers, key: bytes | None = KEY) -> Message:
    """A message for partition 0."""
    return Message(topic, 0, 0, 0, key, value, tuple(headers.items()))


def named(topic: str, kind: int = 0, schema: bytes = b"1.0") -> tuple[str, Headers]:
    """The name of a topic's type, and the headers of a record of it."""
    name = TOPICS[topic].records[kind].type_name()
    return name, {"type": name.encode(), "schema": schema}


def corrupt(topic: str) -> list[Message]:
    """No headers; no msgpack; msgpack of a wrong shape."""
    name, headers = named(topic)
    garbage = b"\xc1 garbage"
    return [planted(topic, garbage, {}), planted(topic, garbage, headers), planted(topic, packed({"type": name, "no": "field"}), headers)]


def newer(topic: str) -> list[Message]:
    """A type that nobody knows, and another major of one that everybody does."""
    name, headers = named(topic, schema=b"2.0")
    return [
        planted(topic, packed({"type": "Thought"}), {"type": b"Thought", "schema": b"1.0"}),
        planted(topic, packed({"type": name}), headers),
    ]


def truncated() -> Message:
    """A Span whose tokens end inside a value."""
    fields = {
        "type": "Span", "session": 0, "request": 1, "epoch": 0, "start": 0, "tokens": b"1234567", "logprobs": b"12345678", "version": 0,
        "kv_version": 0,
    }  # fmt: skip
    return planted("sessions", packed(fields), {"type": b"Span", "schema": b"1.0"})


def packed(value: object) -> bytes:
    """As msgpack."""
    data: bytes = msgpack.packb(value)
    return data


READERS = {
    "tasks": {"source", "agents", "trainer"},
    "sessions": {"gateway", "rollout", "assembler"},
    "trajectories": {"reward", "trainer"},
    "scores": {"source", "trainer"},
    "training": {"source", "rollout", "trainer"},
    "nodes": {"scheduler"},
    "grants": {"rollout"},
    "deadletter": {"test"},
}
"""By topic, the roles that read it all the time."""


@row("corrupt values, a truncated array, null keys and oversize on every topic", scene="loop", is_alone=True)
async def corrupt_records(stage: Stage) -> Happened:
    """Every reader buries what is no record, and goes on. What is larger than a topic takes, the broker refuses."""
    pipeline, seen = stage.pipeline, stage.seen
    messages = [message for topic in TOPICS for message in [*corrupt(topic), *(newer(topic) if topic != "sessions" else [])]]
    _, headers = named("sessions")
    messages += [truncated(), planted("sessions", b"\xc1" * (LARGEST_BYTES - 1000), headers), planted("sessions", None, headers)]
    messages += [planted("sessions", b"\xc1 without a key", headers, key=None)]
    processes = {member: pipeline.crew.members[member].process for member in pipeline.at_home}
    await anyio.to_thread.run_sync(lambda: plant(pipeline, messages))
    wanted = {(message.topic, role, message.value or b"") for message in messages for role in READERS[message.topic]}
    await seen.until(lambda: wanted <= buried(stage), "a dead letter of every reader for each planted record")
    refused = await anyio.to_thread.run_sync(lambda: is_refused(stage, planted("sessions", b"\xc1" * 2 * LARGEST_BYTES, headers)))
    await seen.more_steps(2)
    assert {member: pipeline.crew.members[member].process for member in pipeline.at_home} == processes
    assert all(pipeline.crew.members[member].is_alive for member in pipeline.at_home), "a reader ended"
    fired = f"{len(messages)} messages were buried {len(wanted)} times; one of {2 * LARGEST_BYTES} bytes was refused"
    return Happened(fired if refused else "", allowed=("R4",))


def buried(stage: Stage) -> set[tuple[str, str, bytes]]:
    """Who buried what: topic, role, value."""
    letters = [entry.record for entry in stage.seen.all(DEADLETTER, DeadLetter)]
    return {(each.topic, each.reader, each.original_value) for each in letters}


def is_refused(stage: Stage, message: Message) -> bool:
    """The broker does not take it."""
    try:
        plant(stage.pipeline, [message])
    except KafkaException:
        return True
    return False


@row("another major of a record in sessions", is_alone=True)
async def newer_major(stage: Stage) -> Happened:
    return await readers_stop(stage, newer("sessions")[1])


@row("an unknown type of record in sessions", is_alone=True)
async def unknown_type(stage: Stage) -> Happened:
    return await readers_stop(stage, newer("sessions")[0])


async def readers_stop(stage: Stage, message: Message) -> Happened:
    """Every reader of `sessions` stops: older software would understand half of what newer software wrote."""
    async with stage.agents(tokens=20):
        pass
    await stage.seen.until(lambda: not stage.seen.unsettled(), "an end, a Trajectory and a Score of each session")
    await anyio.to_thread.run_sync(lambda: plant(stage.pipeline, [message]))
    owner = stage.seen.owners[message.partition].node
    for member in ("gateway", "assembler", owner):
        assert await stage.pipeline.exit_code(member) == UnknownRecord.exit_code, stage.pipeline.crew.members[member].last_words()
        assert UnknownRecord.remedy in stage.pipeline.crew.members[member].last_words()
    return Happened(f"gateway, assembler and {owner} ended with code {UnknownRecord.exit_code}", allowed=("R4",))


@row("retention passes every reader of sessions", is_alone=True)
async def retention_passes(stage: Stage) -> Happened:
    """Sessions that were open are lost with their records, and that is said; new owners begin anew, and everything after them counts."""
    pipeline, seen = stage.pipeline, stage.seen
    async with stage.agents(tokens=30):
        pass
    await seen.until(lambda: not seen.unsettled(), "an end, a Trajectory and a Score of each session")
    readers = ["rollout-0", "rollout-1", "assembler"]
    pipeline.crew.end(readers)
    for _ in range(2):
        await open_session(stage)
    gone = await anyio.to_thread.run_sync(lambda: delete_all(pipeline, "sessions"))
    for member in readers:
        await pipeline.restart(member)
    await seen.until(lambda: resets(stage, gone[0]), "a Claim that says that all before it is gone")
    async with stage.agents(tokens=50) as work:
        pass
    assert not work.broken
    said = [member for member in readers if "retention passed every Position" in pipeline.said(member)]
    return Happened(f"{sum(gone.values())} records deleted; {' and '.join(said)} said what was lost" if said else "")


def resets(stage: Stage, above: int) -> list[Claim]:
    """Claims of partition 0 that end all sessions before them."""
    claims = stage.seen.all(SESSIONS, Claim)
    return [entry.record for entry in claims if entry.partition == 0 and entry.offset >= above and entry.record.reset]
