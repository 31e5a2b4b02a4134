"""Messages that leave their payload in the blob store, against msgpack, the reference library."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import deque
from typing import NoReturn

import msgpack
import pytest

from schemas.errors import BlobStoreUnavailable, BrokerError, CorruptRecord, MissingBlob, UnknownRecord
from streams import blobs as module
from streams.blobs import INLINE_BYTES, Blobs, has_reference, reference_in
from streams.blobstore import BlobStore, Reference
from streams.broker import Headers, Message, Outgoing

pytestmark = pytest.mark.anyio

HEADERS: Headers = (("type", b"Trajectory"), ("schema", b"1.0"))
LARGE = b"x" * (INLINE_BYTES + 1)
SHA256 = hashlib.sha256(LARGE).hexdigest()


@pytest.fixture
def blobs() -> Blobs:
    return Blobs(f"memory://{secrets.token_hex(4)}", clock=lambda: 1_796_126_400.0)


def outgoing(value: bytes | None) -> Outgoing:
    return Outgoing("t", 3, b"key", value, HEADERS)


def received(sent: Outgoing) -> Message:
    return Message(sent.topic, sent.partition, 7, 1000, sent.key, sent.value, sent.headers)


@pytest.mark.parametrize("value", [None, b"", b"x" * INLINE_BYTES], ids=["tombstone", "empty", "512 KiB"])
async def test_a_message_of_at_most_512_kib_is_left_alone(value: bytes | None) -> None:
    """Also where there is no store."""
    message = outgoing(value)
    assert await Blobs().check_in(message) is message
    assert await Blobs().check_out(received(message)) == received(message)


async def test_a_larger_one_refers_to_its_payload(blobs: Blobs) -> None:
    sent = await blobs.check_in(outgoing(LARGE))
    assert (sent.topic, sent.partition, sent.key) == ("t", 3, b"key")
    assert sent.headers == (*HEADERS, ("blob", b"1"))
    said = msgpack.unpackb(sent.value)
    assert said == {"uri": said["uri"], "sha256": SHA256, "bytes": len(LARGE)}
    assert said["uri"].endswith(f"/20261201T12/{SHA256}")
    assert has_reference(received(sent))


async def test_any_process_reads_it_back_whole(blobs: Blobs) -> None:
    sent = await blobs.check_in(outgoing(LARGE))
    assert await Blobs().check_out(received(sent)) == received(outgoing(LARGE))


async def test_a_process_without_a_store_writes_no_large_message() -> None:
    with pytest.raises(BrokerError, match="was given none"):
        await Blobs().check_in(outgoing(LARGE))


async def test_a_missing_blob_is_told_with_its_place_and_a_remedy(blobs: Blobs) -> None:
    sent = await blobs.check_in(outgoing(LARGE))
    for stored in await blobs.find():
        await blobs.remove(stored)
    with pytest.raises(MissingBlob, match=rf"t\[3\]@7: memory://.*{SHA256} does not exist \(bring the blob back"):
        await Blobs().check_out(received(sent))


@pytest.mark.parametrize(
    ("value", "form", "error"),
    [
        (b"\xc1", b"1", CorruptRecord),
        (None, b"1", CorruptRecord),
        (msgpack.packb({"uri": "memory://a", "sha256": "aa"}), b"1", CorruptRecord),
        (msgpack.packb({"uri": "memory://a", "sha256": "aa", "bytes": 1}), b"2", UnknownRecord),
    ],
    ids=["no msgpack", "none", "no length", "another form"],
)
async def test_what_is_no_reference_is_told(value: bytes | None, form: bytes, error: type[Exception]) -> None:
    message = Message("t", 3, 7, 1000, None, value, (*HEADERS, ("blob", form)))
    with pytest.raises(error, match=r"t\[3\]@7"):
        await Blobs().check_out(message)


def test_a_reference_may_gain_fields() -> None:
    value = msgpack.packb({"uri": "memory://a", "sha256": "aa", "bytes": 1, "key": "k"})
    assert reference_in(Message("t", 3, 7, 1000, None, value, (("blob", b"1"),))) == Reference(uri="memory://a", sha256="aa", bytes=1)


async def test_a_store_that_fails_for_a_moment_is_waited_for(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE_S", 0.001)
    write, failures = BlobStore.write, deque([ConnectionError("reset"), RuntimeError("503 slow down")])

    def moody(store: BlobStore, content: bytes, now_s: float) -> Reference:
        if failures:
            raise failures.popleft()
        return write(store, content, now_s)

    monkeypatch.setattr(BlobStore, "write", moody)
    assert (await blobs.check_in(outgoing(LARGE))).headers[-1] == ("blob", b"1")
    assert not failures


async def test_a_store_that_keeps_failing_is_an_error_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(reference: Reference) -> NoReturn:
        raise PermissionError("not today")

    monkeypatch.setattr(module, "read_blob", down)
    with pytest.raises(BlobStoreUnavailable, match=r"PermissionError\('not today'\) \(bring the store back"):
        await Blobs(patience_s=0.05).get(Reference(uri="memory://a", sha256="aa", bytes=1))


async def test_a_store_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(reference: Reference) -> bytes:
        release.wait(60)
        return b""

    monkeypatch.setattr(module, "read_blob", hang)
    try:
        with pytest.raises(BlobStoreUnavailable, match="no answer"):
            await Blobs(patience_s=0.05).get(Reference(uri="memory://a", sha256="aa", bytes=1))
    finally:
        release.set()


async def test_what_was_just_written_is_read_from_memory_within_a_bound(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 3 * len(LARGE))
    references = [await blobs.put(bytes([number]) * len(LARGE)) for number in range(4)]
    for stored in await blobs.find():
        await blobs.remove(stored)
    assert [(await blobs.get(reference))[0] for reference in references[1:]] == [1, 2, 3]
    with pytest.raises(MissingBlob):
        await blobs.get(references[0])
    await blobs.get(references[1])  # the one used last is kept
    await blobs.put(b"\4" * len(LARGE))
    assert (await blobs.get(references[1]))[0] == 1
    with pytest.raises(MissingBlob):
        await blobs.get(references[2])


async def test_a_payload_larger_than_the_bound_is_not_kept(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CACHE_BYTES", 10)
    reference = await blobs.put(LARGE)
    assert await blobs.get(reference) == LARGE
    (stored,) = await blobs.find()
    await blobs.remove(stored)
    with pytest.raises(MissingBlob):
        await blobs.get(reference)
