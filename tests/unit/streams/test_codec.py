"""The wire format against msgpack, the reference library, and against what stood on the wire before."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from schemas.errors import CorruptRecord, UnknownRecord
from schemas.record import Record
from schemas.topics import TOPICS
from streams.blobs import BLOB_HEADER
from streams.broker import Headers, Message
from streams.codec import decode, encode
from tests.golden.records import WIRE

IDS = [f"{wire['type']}-{schema}" for _, schema, wire, _ in WIRE]


def message(value: bytes | None, headers: Headers, topic: str = "sessions") -> Message:
    return Message(topic, 3, 7, 1000, None, value, headers)


def headers_of(name: str, schema: str) -> Headers:
    return (("type", name.encode()), ("schema", schema.encode()))


@pytest.mark.parametrize(("topic", "schema", "wire", "record"), WIRE, ids=IDS)
def test_what_stood_on_the_wire_still_means_the_same(topic: str, schema: str, wire: dict[str, Any], record: Record) -> None:
    entry = decode(TOPICS[topic], message(msgpack.packb(wire), headers_of(wire["type"], schema), topic))
    assert entry.record == record
    assert (entry.partition, entry.offset, entry.timestamp_ms) == (3, 7, 1000)


@pytest.mark.parametrize(("topic", "schema", "wire", "record"), WIRE, ids=IDS)
def test_what_is_written_is_one_plain_msgpack_map(topic: str, schema: str, wire: dict[str, Any], record: Record) -> None:
    sent = encode(topic, 3, record)
    assert msgpack.unpackb(sent.value, strict_map_key=False) == wire
    assert dict(sent.headers) == {"type": wire["type"].encode(), "schema": schema.encode()}


def test_every_type_of_the_table_has_a_row() -> None:
    rows = {(topic, type(record)) for topic, _, _, record in WIRE}
    assert rows == {(topic.name, kind) for topic in TOPICS.values() for kind in topic.records}


def test_unknown_fields_pass() -> None:
    value = msgpack.packb({"type": "Tick", "scheduler": "s", "number": 3, "mood": "good"})
    entry = decode(TOPICS["nodes"], message(value, headers_of("Tick", "1.9")))
    assert entry.record.type_name() == "Tick"


@pytest.mark.parametrize(
    ("name", "schema"), [("Dance", "1.0"), ("Span", "2.0"), ("Span", "0.9"), ("Tick", "1.0")],
    ids=["type", "major", "older major", "type of another topic"],
)
def test_unknown_types_and_majors_are_told_by_the_headers_alone(name: str, schema: str) -> None:
    with pytest.raises(UnknownRecord):
        decode(TOPICS["sessions"], message(b"\xc1", headers_of(name, schema)))


SPAN: dict[str, Any] = WIRE[6][2]


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"\xc1",
        msgpack.packb([1, 2]),
        msgpack.packb({**SPAN, "type": "Cancel"}),
        msgpack.packb({**SPAN, "start": "zero"}),
        msgpack.packb(SPAN)[:-3],
        msgpack.packb({**SPAN, "logprobs": SPAN["logprobs"][:4]}),
        msgpack.packb({**SPAN, "tokens": SPAN["tokens"][:7]}),
        msgpack.packb({**SPAN, "logprobs": b"\x00\x00\xc0\x7f" * 2}),
        msgpack.packb({**SPAN, "logprobs": b"\x00\x00\x80\xff" * 2}),
    ],
    ids=["none", "empty", "no msgpack", "no map", "other tag", "wrong type", "cut", "shorter logprobs", "torn token", "NaN", "infinity"],
)
def test_r4_bytes_that_are_no_span_are_corrupt(value: bytes | None) -> None:
    with pytest.raises(CorruptRecord, match=r"sessions\[3\]@7"):
        decode(TOPICS["sessions"], message(value, headers_of("Span", "1.0")))


@pytest.mark.parametrize("headers", [(), headers_of("Span", ""), headers_of("Span", "one")], ids=["none", "no schema", "no number"])
def test_records_without_usable_headers_are_corrupt(headers: Headers) -> None:
    with pytest.raises(CorruptRecord):
        decode(TOPICS["sessions"], message(msgpack.packb(SPAN), headers))


def test_a_payload_that_was_not_fetched_is_no_record_whatever_its_reference_holds() -> None:
    headers = (*headers_of("Span", "1.0"), (BLOB_HEADER, b"1"))
    with pytest.raises(CorruptRecord, match="was not fetched"):
        decode(TOPICS["sessions"], message(msgpack.packb(SPAN), headers))


def test_keys_are_what_compaction_and_people_go_by() -> None:
    keys = {(str(wire["type"]), record.key()) for _, _, wire, record in WIRE}
    assert keys == {
        ("Task", b"1"), ("Open", b"abc123"), ("Request", b"9"), ("Cancel", b"9"), ("Close", b"9"), ("Claim", b"claim"), ("Span", b"9"),
        ("Trajectory", b"9"), ("Score", b"9"), ("Run", b"Run"), ("WeightVersion", b"WeightVersion"), ("Step", b"Step"), ("Drops", b"Drops"),
        ("NodeStatus", b"node/a"), ("NodeStatus", b"node/t"), ("Tick", b"tick"), ("Control", b"control/drain/a"),
        ("Grant", b"partition/3"), ("Role", b"role/a"), ("DeadLetter", b"sessions"), ("Settlement", b"settlement"),
    }
