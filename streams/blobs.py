"""Large payloads beside the log: a message over INLINE_BYTES is written as a small one that refers to a blob, and read back whole.

On the wire such a message keeps its key and headers. Its value is the msgpack map `{uri, sha256, bytes}` of a `Reference`, and one more
header says so: `blob: 1`, the form of that map. So every record type may grow, and none knows about it.

Invariants:
- the blob is whole before the message is handed to a producer;
- `check_out(check_in(message))` has the message's value; a message of at most INLINE_BYTES passes both untouched, without I/O;
- a store that does not answer is waited for, then it is an error: only a blob that a store says it does not have, or that is not what its
  reference says, is MissingBlob;
- files are read and written in threads; what is kept in memory to be read again is bounded by CACHE_BYTES.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import anyio
import anyio.to_thread
import msgspec

from schemas.errors import BlobStoreUnavailable, BrokerError, CorruptRecord, MissingBlob, UnknownRecord
from streams.blobstore import BlobStore, Reference, Stored, read_blob
from streams.broker import Message, Outgoing
from streams.failpoint import failpoint

__all__ = ["BLOB_HEADER", "INLINE_BYTES", "Blobs", "has_reference", "reference_in"]

INLINE_BYTES = 512 << 10
"""The largest value that a message carries itself."""
CACHE_BYTES = 32 << 20
"""A process often reads what it wrote a moment ago: its own Request, its own Span."""
PATIENCE_S = 30.0
"""How long a store may fail before that is an error."""
LISTING_S = 600.0
"""The same for a list of all that it holds."""
PAUSE_S = 0.5
BLOB_HEADER = "blob"
FORM = b"1"

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Reference)


class Blobs:
    """The blob store as one process uses it. Without a `root` it reads what references name, and refuses to write."""

    def __init__(self, root: str | None = None, *, patience_s: float = PATIENCE_S, clock: Callable[[], float] = time.time) -> None:
        self._store = None if root is None else BlobStore(root)
        self._patience_s = patience_s
        self._clock = clock
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._kept_bytes = 0

    async def check_in(self, message: Outgoing) -> Outgoing:
        """The message as it is to be sent: itself, or one that refers to its value in the store.

        :raises BrokerError: it is too large, and there is no store.
        :raises BlobStoreUnavailable: the store does not answer.
        """
        if message.value is None or len(message.value) <= INLINE_BYTES:
            return message
        reference = await self.put(message.value)
        failpoint("blobs.stored")
        headers = (*message.headers, (BLOB_HEADER, FORM))
        return Outgoing(message.topic, message.partition, message.key, _encoder.encode(reference), headers)

    async def check_out(self, message: Message) -> Message:
        """The message as it was before `check_in`.

        :raises MissingBlob: its blob is gone or damaged.
        :raises BlobStoreUnavailable: the store does not answer.
        :raises CorruptRecord: the reference is none.
        :raises UnknownRecord: newer software wrote the reference in another form.
        """
        if not has_reference(message):
            return message
        try:
            content = await self.get(reference_in(message))
        except MissingBlob as error:
            raise MissingBlob(f"{_where(message)}: {error.args[0]}") from error
        headers = tuple(pair for pair in message.headers if pair[0] != BLOB_HEADER)
        return Message(message.topic, message.partition, message.offset, message.timestamp_ms, message.key, content, headers)

    async def put(self, content: bytes) -> Reference:
        """Store a payload; it is whole when this returns.

        :raises BrokerError: there is no store.
        :raises BlobStoreUnavailable: the store does not answer.
        """
        reference = await self._patiently(partial(self._require_store().write, content, self._clock()))
        self._keep(reference.sha256, content)
        return reference

    async def get(self, reference: Reference) -> bytes:
        """The payload that a reference names.

        :raises MissingBlob: it is gone or damaged.
        :raises BlobStoreUnavailable: the store does not answer.
        """
        if reference.sha256 in self._kept:
            self._kept.move_to_end(reference.sha256)
            return self._kept[reference.sha256]
        content = await self._patiently(partial(read_blob, reference))
        self._keep(reference.sha256, content)
        return content

    async def find(self) -> list[Stored]:
        """All that the store holds.

        :raises BrokerError: there is no store.
        :raises BlobStoreUnavailable: the store does not answer.
        """
        return await self._patiently(self._require_store().find, LISTING_S)

    async def remove(self, blob: Stored) -> None:
        """Remove a blob; one that is gone already is no error.

        :raises BlobStoreUnavailable: the store does not answer.
        """
        await self._patiently(partial(self._require_store().remove, blob))

    def _require_store(self) -> BlobStore:
        if self._store is None:
            raise BrokerError("a message is larger than 512 KiB: its payload belongs into the blob store, and this process was given none")
        return self._store

    async def _patiently(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        limit_s = self._patience_s if patience_s is None else patience_s
        last: Exception = TimeoutError("no answer")
        with anyio.move_on_after(limit_s):
            while True:
                try:
                    return await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
                except MissingBlob:
                    raise
                except Exception as error:  # each store raises its own client's errors, and none of them says more than "not now"
                    last = error
                await anyio.sleep(PAUSE_S)
        raise BlobStoreUnavailable(f"the blob store failed for {limit_s:.0f} s: {last!r}") from last

    def _keep(self, sha256: str, content: bytes) -> None:
        if sha256 in self._kept or len(content) > CACHE_BYTES:
            return
        self._kept[sha256] = content
        self._kept_bytes += len(content)
        while self._kept_bytes > CACHE_BYTES:
            self._kept_bytes -= len(self._kept.popitem(last=False)[1])


def has_reference(message: Message) -> bool:
    """Whether a message carries a reference in place of its value. Asked for each message read: hence no comprehension."""
    for name, _ in message.headers:  # noqa: SIM110
        if name == BLOB_HEADER:
            return True
    return False


def reference_in(message: Message) -> Reference:
    """The reference that a message carries in place of its value.

    :raises CorruptRecord: it is none.
    :raises UnknownRecord: newer software wrote it in another form.
    """
    form = dict(message.headers)[BLOB_HEADER]
    if form != FORM:
        raise UnknownRecord(f"{_where(message)}: a blob reference of form {form!r}; this software knows {FORM!r}")
    try:
        return _decoder.decode(message.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{_where(message)}: no blob reference: {error}") from error


def _where(message: Message) -> str:
    return f"{message.topic}[{message.partition}]@{message.offset}"
