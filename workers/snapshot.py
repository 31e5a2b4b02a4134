"""A snapshot: the fold of one partition of `sessions` at an offset, as bytes. A takeover that begins with one reads what is open, not what
is old. Pure.

It holds what the rest of the log can still change: the open sessions with their token trees, accepted tokens, nonces and deaths, and the
epoch in force. Like a Position it is a fact of the log, true for ever, whoever took it; and it only saves time.

Invariants:
- the fold of a log's rest upon `read(snapshot_of(fold of its beginning))` answers every record as the whole fold does, for every cut;
- bytes that are damaged, of another partition, or written in another form are no snapshot: `read` refuses them, and never guesses.
"""

from __future__ import annotations

import hashlib

import msgspec

from schemas.errors import CorruptRecord
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Open, Request
from schemas.span import Span
from workers.ledger import End, Ledger, Part, RequestState, SessionState

__all__ = ["Backlog", "Snapshot", "digest", "encode", "read", "snapshot_of"]

FORM = b"seamlessflow ledger 1\n"
"""The first bytes. Its number grows with every change of the fold's rules or of the shapes below: no fold is built upon an older one."""

RECORD_BYTES = 64
"""What a record costs its reader beside its tokens."""


class _RequestImage(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    record: Request
    has_base: bool
    end: End | None
    tokens: bytes
    logprobs: bytes
    parts: list[Part]
    deaths: int
    detail: str
    engine_ms: float


class _SessionImage(msgspec.Struct, frozen=True, array_like=True):
    offset: int
    record: Open
    epoch: int
    last: int
    requests: list[_RequestImage]
    nonces: list[bytes]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The fold before the record at `next` of `topic` (full name) and `partition`.

    `at_ms` is the newest of the log's stamps that the taker had read, `opened_ms` when sessions opened (session → stamp), where it kept
    these; milliseconds since 1970.
    """

    topic: str
    partition: int
    next: int
    epoch: int
    sessions: list[_SessionImage]
    at_ms: int = 0
    opened_ms: dict[int, int] = {}

    @property
    def position(self) -> Position:
        """Where reading goes on."""
        return Position(self.next, self.epoch)

    def ledger(self) -> Ledger:
        """The fold, as it was."""
        ledger = Ledger(self.position)
        ledger.sessions = {image.offset: _session(image) for image in self.sessions}
        return ledger


def snapshot_of(
    ledger: Ledger, topic: str, partition: int, *, at_ms: int = 0, opened_ms: dict[int, int] | None = None
) -> Snapshot:
    """The fold's open sessions, as they are now; the ended ones have nothing to come.

    :raises ValueError: nothing counts yet (the ledger has a floor).
    """
    if ledger.floor is not None:
        raise ValueError("a fold that waits for a reset has no snapshot")
    sessions = [_session_image(session) for session in ledger.sessions.values() if session.is_open]
    return Snapshot(
        topic=topic, partition=partition, next=ledger.next, epoch=ledger.epoch, sessions=sessions, at_ms=at_ms, opened_ms=opened_ms or {}
    )


def encode(snapshot: Snapshot) -> bytes:
    """The bytes to keep."""
    return FORM + msgspec.msgpack.encode(snapshot)


def digest(content: bytes) -> str:
    """By which a reader knows that it has the whole (hex)."""
    return hashlib.sha256(content).hexdigest()


def read(content: bytes, topic: str, partition: int) -> Snapshot:
    """The snapshot in these bytes.

    :raises CorruptRecord: they are none of this partition in this form; the line says why.
    """
    if not content.startswith(FORM):
        raise CorruptRecord(f"a snapshot of another form: {content[: len(FORM)]!r}")
    try:
        snapshot = msgspec.msgpack.decode(content[len(FORM) :], type=Snapshot)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"no snapshot: {error}") from error
    if (snapshot.topic, snapshot.partition) != (topic, partition):
        raise CorruptRecord(f"a snapshot of {snapshot.topic}[{snapshot.partition}], not of {topic}[{partition}]")
    return snapshot


class Backlog:
    """How many bytes a new owner of a partition would have to read before its first own record, and when that is worth a snapshot. Pure.

    Bytes are those of tokens and logprobs, and RECORD_BYTES for each record. Counted from where this reader began.
    """

    def __init__(self) -> None:
        self._read = 0
        self._taken_at = 0
        self._size_bytes = 0
        self._opened_at: dict[int, int] = {}

    def saw(self, offset: int, record: Record) -> None:
        """A record was read."""
        if isinstance(record, Open):
            self._opened_at[offset] = self._read
        self._read += RECORD_BYTES
        if isinstance(record, Span):
            self._read += len(record.tokens) + len(record.logprobs)
        elif isinstance(record, Request):
            self._read += len(record.tokens)

    def bytes_behind(self, ledger: Ledger) -> int:
        """From the oldest remembered session on, or from the last snapshot, whichever is later."""
        self._opened_at = {offset: at for offset, at in self._opened_at.items() if offset in ledger.sessions}
        oldest = next(iter(ledger.sessions), None)
        begin = self._read if oldest is None else self._opened_at.get(oldest, 0)
        return self._read - max(begin, self._taken_at)

    def is_due(self, ledger: Ledger, every_bytes: int) -> bool:
        """A snapshot saves `every_bytes` of reading, and at least as much as the last one took to write."""
        return ledger.floor is None and self.bytes_behind(ledger) >= max(every_bytes, self._size_bytes)

    def taken(self) -> None:
        """A snapshot was taken of all that was seen. Whether it can be kept shows later: it is not taken again at once."""
        self._taken_at = self._read

    def weighs(self, size_bytes: int) -> None:
        """So large was the last one."""
        self._size_bytes = size_bytes


def _session_image(session: SessionState) -> _SessionImage:
    requests = [_request_image(request) for request in session.requests.values()]
    return _SessionImage(session.offset, session.record, session.epoch, session.last, requests, sorted(session.nonces))


def _request_image(request: RequestState) -> _RequestImage:
    return _RequestImage(
        request.offset, request.record, request.base is not None, request.end, bytes(request.tokens), bytes(request.logprobs),
        request.parts.copy(), request.deaths, request.detail, request.engine_ms,
    )


def _session(image: _SessionImage) -> SessionState:
    session = SessionState(image.offset, image.record, image.epoch, image.last, nonces=set(image.nonces))
    for each in image.requests:  # in their order: a base stands before what builds upon it
        base = session.requests[each.record.base] if each.has_base and each.record.base is not None else None
        session.requests[each.offset] = _request(each, base)
    return session


def _request(image: _RequestImage, base: RequestState | None) -> RequestState:
    return RequestState(
        image.offset, image.record, base, image.end, bytearray(image.tokens), bytearray(image.logprobs),
        image.parts.copy(), image.deaths, image.detail, image.engine_ms,
    )
