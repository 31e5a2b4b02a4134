"""What `tail` makes of bytes, and where it starts."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cli.readable import printable, readable, readable_payload
from infra.cli.tail import as_json, as_text, starting_offset
from schemas.errors import UsageError

RECORD: dict[str, Any] = {
    "topic": "seamlessflow.sessions",
    "partition": 3,
    "offset": 17,
    "timestamp_ms": 1_700_000_000_123,
    "key": "5",
    "headers": {"type": "Span"},
    "value": {"type": "Span", "request": 9, "tokens": list(range(10)), "logprobs": [-0.25]},
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [("beginning", 10), ("end", 20), ("15", 15), ("-3", 17), ("-99", 10), ("3", 10), ("99", 20), ("-0", 20)],
)
def test_where_a_partition_with_offsets_10_to_19_starts(text: str, expected: int) -> None:
    assert starting_offset(text, 10, 20) == expected


def test_a_payload_in_the_blob_store_is_shown_as_if_it_stood_in_the_log(tmp_path: Path) -> None:
    content = msgpack.packb({"type": "Cancel", "session": 1})
    (tmp_path / "blob").write_bytes(content)
    reference = {"uri": f"{tmp_path}/blob", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    assert readable_payload(msgpack.packb(reference), [("blob", b"1")]) == {"type": "Cancel", "session": 1}
    (tmp_path / "blob").unlink()
    shown = readable_payload(msgpack.packb(reference), [("blob", b"1")])
    assert shown is not None
    assert shown["reference"] == reference
    assert "cannot be read" in shown["error"]
    assert readable_payload(msgpack.packb({"a": 1}), []) == {"a": 1}


def test_another_word_is_refused() -> None:
    with pytest.raises(UsageError, match="-o start: expected beginning, end, an offset, or -N"):
        starting_offset("start", 0, 1)


def test_arrays_become_numbers_and_other_bytes_hex() -> None:
    value = msgpack.packb({
        "type": "Span",
        "tokens": struct.pack("<3i", 1, 2, -3),
        "logprobs": struct.pack("<2f", -0.5, 2.0),
        "versions": struct.pack("<i", -1),
        "mask": b"\x00\x01",
        "nonce": b"\xff\x00",
        "nodes": [{"tokens": struct.pack("<i", 7)}],
    })
    assert readable(value) == {
        "type": "Span",
        "tokens": [1, 2, -3],
        "logprobs": [-0.5, 2.0],
        "versions": [-1],
        "mask": [0, 1],
        "nonce": "ff00",
        "nodes": [{"tokens": [7]}],
    }


@pytest.mark.parametrize("value", [b"", b"\xc1", b"\x81", b"plain text", msgpack.packb({"a": 1})[:-1], b"\x81\x90\x01"])
def test_corrupt_bytes_are_shown_as_hex_with_a_reason(value: bytes) -> None:
    answer = readable(value)
    assert answer is not None
    assert answer["raw"] == value.hex()
    assert answer["error"].rstrip(": ") != "not msgpack"


def test_an_array_that_ends_inside_a_value_is_hex() -> None:
    assert readable(msgpack.packb({"tokens": b"\x01\x02\x03\x04\x05"})) == {"tokens": "0102030405"}


def test_what_is_not_finite_is_text_so_that_json_stays_json() -> None:
    value = msgpack.packb({"logprobs": struct.pack("<f", float("nan")), "value": float("inf")})
    assert readable(value) == {"logprobs": ["nan"], "value": "inf"}


def test_a_tombstone_has_no_value() -> None:
    assert readable(None) is None
    assert as_text(RECORD | {"value": None}).split()[2:] == ["tombstone", "key=5"]


@given(st.binary(max_size=200))
def test_any_bytes_can_be_shown(value: bytes) -> None:
    record = RECORD | {"value": readable(value), "key": printable(value)}
    assert as_json(record).count("\n") == 0
    assert as_text(record).startswith("22:13:20.123 3@17 ")


def test_text_is_one_short_line() -> None:
    expected = "22:13:20.123 3@17 Span key=5 request=9 tokens=[0, 1, 2, 3, 4, 5, 6, 7, … 10] logprobs=[-0.25]"
    assert as_text(RECORD) == expected


@pytest.mark.parametrize(("data", "expected"), [(b"abc", "abc"), (b"\xff", "ff"), (b"a\n", "610a"), (None, None)])
def test_keys_are_text_where_they_are_text(data: bytes | None, expected: str | None) -> None:
    assert printable(data) == expected
