"""Records of older and newer software: what stood on the wire is read for ever, what is unknown passes or stops (R4).

Expected values: the kept files of `tests/golden`, and msgpack, the reference library.
"""

from __future__ import annotations

from typing import Any

import msgpack
import msgspec
import pytest

from infra.audit.entry import read_entry
from infra.audit.shapes import TOPIC_SHAPES
from schemas.deadletter import DeadLetter
from schemas.errors import UnknownRecord
from schemas.record import Record
from schemas.topics import DEADLETTER, TOPICS, Topic
from streams.broker import Message, Outgoing
from streams.codec import decode, encode
from streams.log import Log
from streams.memory import MemoryBroker
from tests.golden.keep import FIELDS, Kept, kept_bytes, lines, plain, reshaped, structs
from tests.golden.records import WIRE
from tests.unit.workers.running import append, memory_log, records

KEPT = kept_bytes()
IDS = [f"{kept.type}-{number}" for number, kept in enumerate(KEPT)]
TYPES = {kind.__name__: kind for kind in structs()}
WAIT_S = 20.0


def message(kept: Kept, value: bytes) -> Message:
    return Message(kept.topic, 0, 7, 1000, None, value, (("type", kept.type.encode()), ("schema", kept.schema.encode())))


def read(kept: Kept, value: bytes) -> Record:
    return decode(TOPICS[kept.topic], message(kept, value)).record


def with_more(kind: Any, part: dict[str, Any]) -> dict[str, Any]:
    return {"later": [1, {"deep": None}], **part, "moods": {"good": 1}}


def with_least(kind: Any, part: dict[str, Any]) -> dict[str, Any]:
    required = {field.name for field in msgspec.structs.fields(kind) if field.required}
    return {name: value for name, value in part.items() if name in required | {"type"}}


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_kept_bytes_are_read_and_nothing_of_them_is_lost(kept: Kept) -> None:
    written = encode(kept.topic, 0, read(kept, kept.value))
    assert written.value is not None
    assert plain(written.value) == plain(kept.value)
    assert dict(written.headers)["type"] == kept.type.encode()


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_fields_of_newer_software_pass_in_every_part(kept: Kept) -> None:
    newer = msgpack.packb(reshaped(TYPES[kept.type], plain(kept.value), with_more))
    assert newer != kept.value
    assert read(kept, newer) == read(kept, kept.value)


@pytest.mark.parametrize("kept", KEPT, ids=IDS)
def test_what_older_software_did_not_know_has_its_default(kept: Kept) -> None:
    defaults = {name: default for name, _, default in (line.split(" ", 2) for line in lines(FIELDS))}
    record = read(kept, msgpack.packb(reshaped(TYPES[kept.type], plain(kept.value), with_least)))
    left = {field.name: repr(getattr(record, field.name)) for field in msgspec.structs.fields(record) if not field.required}
    assert left == {name: defaults[f"{kept.type}.{name}"] for name in left}


@pytest.mark.parametrize("kept", [kept for kept in KEPT if kept.type in TOPIC_SHAPES.get(kept.topic, {})], ids=lambda kept: kept.type)
def test_the_audit_reads_the_same(kept: Kept) -> None:
    newer = msgpack.packb(reshaped(TYPES[kept.type], plain(kept.value), with_more))
    for value in (kept.value, newer):
        entry = read_entry(message(kept, value), kept.topic)
        for name, said in plain(kept.value).items():
            if name != "type" and not isinstance(said, dict | list):
                assert entry[name] == said


@pytest.mark.anyio
@pytest.mark.parametrize("headers", [(("type", b"Thought"), ("schema", b"1.0")), (("schema", b"2.0"),)], ids=["type", "major"])
@pytest.mark.parametrize("topic", TOPICS.values(), ids=TOPICS)
async def test_r4_newer_types_and_majors_stop_readers_of_sessions_and_are_buried_elsewhere(topic: Topic, headers: Any) -> None:
    log = await memory_log(partitions=1)
    record = next(row[3] for row in WIRE if row[0] == topic.name)
    plant(log, topic, record, {"type": record.type_name().encode(), **dict(headers)})
    append(log, topic, 0, record)
    async with log.follow_all(topic) as reader:
        if topic.name == "sessions":
            with pytest.raises(UnknownRecord, match="upgrade this process"):
                await reader.read(timeout_s=WAIT_S)
            return
        assert [(entry.offset, entry.record) for entry in await reader.read(timeout_s=WAIT_S)] == [(1, record)]
    if topic is not DEADLETTER:
        (letter,) = records(log, DEADLETTER, DeadLetter)
        assert (letter.topic, letter.offset) == (topic.name, 0)


def plant(log: Log, topic: Topic, record: Record, headers: dict[str, bytes]) -> None:
    sound = encode(log.name(topic), 0, record)
    assert isinstance(log.broker, MemoryBroker)
    log.broker.append(Outgoing(sound.topic, 0, sound.key, sound.value, tuple(headers.items())))
