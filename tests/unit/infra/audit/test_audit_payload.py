"""The audit's own reading of payloads in the blob store, against bytes written by hand."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgpack
import pytest

from infra.audit.entry import Unreadable, read_entry
from infra.audit.payload import NoPayload, payload
from streams.broker import Message

CONTENT = msgpack.packb({"type": "Cancel", "session": 1, "request": 2})
SHA256 = hashlib.sha256(CONTENT).hexdigest()
HEADERS = (("type", b"Cancel"), ("schema", b"1.0"), ("blob", b"1"))


@pytest.fixture
def value(tmp_path: Path) -> bytes:
    (tmp_path / "blob").write_bytes(CONTENT)
    return bytes(msgpack.packb({"uri": f"file://{tmp_path}/blob", "sha256": SHA256, "bytes": len(CONTENT)}))


def test_a_message_without_the_header_is_its_own_payload() -> None:
    assert payload(b"value", HEADERS[:2]) == b"value"
    assert payload(None, ()) is None


def test_a_record_is_read_through_its_reference(value: bytes) -> None:
    entry = read_entry(Message("sessions", 0, 5, 0, None, value, HEADERS), "sessions")
    assert (entry.type, entry["session"], entry["request"], entry["reason"]) == ("Cancel", 1, 2, "client left")


@pytest.mark.parametrize("content", [None, CONTENT[:-1], CONTENT[:-1] + b"\x03"], ids=["gone", "short", "changed"])
def test_a_blob_that_is_gone_or_damaged_stops_readers(value: bytes, tmp_path: Path, content: bytes | None) -> None:
    if content is None:
        (tmp_path / "blob").unlink()
    else:
        (tmp_path / "blob").write_bytes(content)
    with pytest.raises(Unreadable, match="blob file://") as caught:
        read_entry(Message("sessions", 0, 5, 0, None, value, HEADERS), "sessions")
    assert caught.value.stops


def test_another_form_stops_readers(value: bytes) -> None:
    with pytest.raises(NoPayload, match="form b'2'") as caught:
        payload(value, (("blob", b"2"),))
    assert caught.value.readers_stop


@pytest.mark.parametrize(
    "value", [None, b"\xc1", b"\x01", msgpack.packb({"uri": "x"}), msgpack.packb({"uri": 1, "sha256": "", "bytes": 1})]
)
def test_what_is_no_reference_is_corrupt(value: bytes | None) -> None:
    with pytest.raises(NoPayload, match="no blob reference") as caught:
        payload(value, (("blob", b"1"),))
    assert not caught.value.readers_stop
