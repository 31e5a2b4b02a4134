"""The ledger: R1 to R4 as one pure fold of one partition of `sessions`. Owner, gateway and assembler share it, so they agree.

`apply` takes the partition's records in log order and answers what changed. What is not answered did not happen: a span that does not
count, a second end, a doubled request. No clock, no I/O.

Invariants:
- R1 fence: `epoch` is the greatest Claim so far, and only spans of that epoch count;
- R2 continuity: accepted tokens of a request only grow; a span counts if it starts where they end; one that repeats an accepted span is
  ignored; any other one ends the request as `failed`;
- R3 the first end wins: nothing changes an ended request or session, or an unknown one;
- a fold started from a Position agrees with one from offset 0 on every session opened at or after it (R5);
- with a `floor` nothing counts before a Claim with `reset` at least as great (retention passed every Position).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.arrays import WIDTH_BYTES, unpack_f4, unpack_i4
from schemas.identity import START, Position
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request
from schemas.span import Span
from schemas.trajectory import NodeEnd

SUSPECT_DEATHS = 2
"""From so many deaths without progress on, a request runs alone (Poison)."""


_OF_A_SESSION = (Request, Span, Close, Cancel)
"""Records that name a session. A tuple: a union type would be built anew for each record."""


class End(NamedTuple):
    """Which record ended a request, and how."""

    offset: int
    why: NodeEnd


class Part(NamedTuple):
    """One counted span: the index of its first token, how many it has, and the versions behind them."""

    start: int
    size: int
    version: int
    kv_version: int


@dataclass(slots=True, eq=False)
class RequestState:
    """One request as the log counts it. `tokens` int32 and `logprobs` float32 hold what was accepted; `parts` where spans met.

    `deaths` counts the owners that died on it without progress (Poison). `engine_ms` is what its closing span says of the engine's time.
    """

    offset: int
    record: Request
    base: RequestState | None
    end: End | None = None
    tokens: bytearray = field(default_factory=bytearray)
    logprobs: bytearray = field(default_factory=bytearray)
    parts: list[Part] = field(default_factory=list)
    deaths: int = 0
    detail: str = ""
    engine_ms: float = 0.0

    @property
    def accepted(self) -> int:
        """Number of tokens accepted."""
        return len(self.tokens) // WIDTH_BYTES

    @property
    def prompt_length(self) -> int:
        """Number of prompt tokens."""
        return self.record.base_length + len(self.record.tokens) // WIDTH_BYTES

    @property
    def length(self) -> int:
        """Number of tokens of the whole sequence: prompt and accepted."""
        return self.prompt_length + self.accepted

    @property
    def is_rooted(self) -> bool:
        """Its prompt is known: the base that it names holds what it builds upon."""
        return self.record.base is None or self.base is not None

    def sequence(self, upto: int | None = None) -> bytes:
        """The first `upto` tokens (default: all) of the whole sequence, int32."""
        segments: list[bytes] = []
        request: RequestState | None = self
        left = self.length if upto is None else upto
        while request is not None and left > 0:
            above = request.record.base_length
            if left > above:
                segments.append(bytes(request.record.tokens + request.tokens)[: (left - above) * WIDTH_BYTES])
            request, left = request.base, min(left, above)
        return b"".join(reversed(segments))

    def prompt_ids(self) -> list[int]:
        """The prompt's token ids."""
        return unpack_i4(self.sequence(self.prompt_length))

    def token_ids(self) -> list[int]:
        """The accepted tokens' ids."""
        return unpack_i4(bytes(self.tokens))

    def logprob_values(self) -> list[float]:
        """The accepted tokens' log-probabilities, nats."""
        return unpack_f4(bytes(self.logprobs))

    def versions(self) -> list[int]:
        """The version of each accepted token."""
        return [part.version for part in self.parts for _ in range(part.size)]


@dataclass(slots=True, eq=False)
class SessionState:
    """One session as the log counts it. `epoch` was in force at its Open; `last` is its last counted record; `close` ended it.

    A session that a reset Claim ended has no `close`, and gets no Trajectory.
    """

    offset: int
    record: Open
    epoch: int
    last: int
    requests: dict[int, RequestState] = field(default_factory=dict)
    nonces: set[bytes] = field(default_factory=set)
    ended_at: int | None = None
    close: Close | None = None

    @property
    def is_open(self) -> bool:
        """No record ended it yet."""
        return self.ended_at is None

    def running(self) -> Iterator[RequestState]:
        """Its requests without an end."""
        return (request for request in self.requests.values() if request.end is None)


class Opened(NamedTuple):
    """A session began."""

    session: SessionState


class Requested(NamedTuple):
    """A request began (or failed at once, if its base was wrong: then `request.end` is set)."""

    session: SessionState
    request: RequestState


class Extended(NamedTuple):
    """A span counted: the request's last part. It may have ended the request."""

    session: SessionState
    request: RequestState
    part: Part


class RequestEnded(NamedTuple):
    """A request ended without new tokens: cancelled, or failed by a conflict."""

    session: SessionState
    request: RequestState


class SessionEnded(NamedTuple):
    """A session ended, and with it all that ran in it."""

    session: SessionState


class Claimed(NamedTuple):
    """A greater epoch is in force. `ended` are the sessions that a reset ended."""

    claim: Claim
    ended: list[SessionState]


Change = Opened | Requested | Extended | RequestEnded | SessionEnded | Claimed


class Ledger:
    """The fold of one partition from `position` on.

    `sessions` are those remembered, by the offset of their Open, oldest first. A reader forgets an ended session when it has done with it
    what it must: `position()` is where another reader of the same kind may take over.
    """

    def __init__(self, position: Position = START, floor: int | None = None) -> None:
        self.next = position.offset
        self.epoch = position.epoch
        self.floor = floor
        self.sessions: dict[int, SessionState] = {}

    def apply(self, offset: int, record: Record) -> Change | None:
        """Take in the record at `offset`; answers what changed, or None where it does not count."""
        self.next = offset + 1
        if isinstance(record, Claim):
            return self._claim(offset, record)
        if self.floor is not None:
            return None
        if isinstance(record, Open):
            return self._open(offset, record)
        session = self._live(record)
        return None if session is None else self._apply_to(session, offset, record)

    def position(self) -> Position:
        """R5: the Open of the oldest session remembered and the epoch in force there, else the next offset and the current epoch."""
        oldest = next(iter(self.sessions.values()), None)
        return Position(self.next, self.epoch) if oldest is None else Position(oldest.offset, oldest.epoch)

    def forget(self, session: SessionState) -> None:
        """Stop remembering an ended session."""
        self.sessions.pop(session.offset, None)

    def unfinished(self) -> list[tuple[SessionState, RequestState]]:
        """All running requests, oldest first."""
        return [(session, request) for session in self.sessions.values() for request in session.running()]

    def _claim(self, offset: int, claim: Claim) -> Claimed | None:
        if claim.epoch <= self.epoch:
            return None
        self.epoch = claim.epoch
        if claim.reset and (self.floor is None or claim.epoch >= self.floor):
            self.floor = None
            return Claimed(claim, self._reset(offset))
        if claim.cause == "dead":
            self._blame()
        return Claimed(claim, [])

    def _blame(self) -> None:
        """An owner died. While there are suspects the oldest ran alone, so nobody else can have killed it."""
        running = [request for _, request in self.unfinished()]
        suspects = [request for request in running if request.deaths >= SUSPECT_DEATHS]
        for request in suspects[:1] or running:
            request.deaths += 1

    def _reset(self, offset: int) -> list[SessionState]:
        ended = [session for session in self.sessions.values() if session.is_open]
        for session in ended:
            _end_session(session, offset)
        return ended

    def _open(self, offset: int, record: Open) -> Opened:
        session = SessionState(offset, record, self.epoch, offset)
        self.sessions[offset] = session
        return Opened(session)

    def _live(self, record: Record) -> SessionState | None:
        assert isinstance(record, _OF_A_SESSION)
        session = self.sessions.get(record.session)
        return session if session is not None and session.is_open else None

    def _apply_to(self, session: SessionState, offset: int, record: Record) -> Change | None:
        match record:
            case Request():
                change: Change | None = _request(session, offset, record)
            case Span():
                change = self._span(session, offset, record)
            case Cancel():
                change = _cancel(session, offset, record)
            case Close():
                change = _close(session, offset, record)
            case _:
                change = None
        if change is not None:
            session.last = offset
        return change

    def _span(self, session: SessionState, offset: int, span: Span) -> Change | None:
        request = session.requests.get(span.request)
        if request is None or request.end is not None or span.epoch != self.epoch:
            return None
        if span.start == request.accepted:
            return _extend(session, request, offset, span)
        if _repeats(request, span):
            return None
        request.detail = f"a span starts at {span.start} where {request.accepted} tokens were accepted"
        request.end = End(offset, "failed")
        return RequestEnded(session, request)


def _request(session: SessionState, offset: int, record: Request) -> Requested | None:
    if record.nonce in session.nonces:
        return None
    session.nonces.add(record.nonce)
    base = None if record.base is None else session.requests.get(record.base)
    request = RequestState(offset, record, base)
    if record.base is not None and (base is None or not base.is_rooted or record.base_length > base.length):
        request.detail = f"base {record.base} does not hold {record.base_length} tokens"
        request.end = End(offset, "failed")
        request.base = None
    session.requests[offset] = request
    return Requested(session, request)


def _extend(session: SessionState, request: RequestState, offset: int, span: Span) -> Extended:
    part = Part(span.start, span.count, span.version, span.kv_version)
    request.tokens += span.tokens
    request.logprobs += span.logprobs
    request.parts.append(part)
    if span.count:
        request.deaths = 0
    if span.finish is not None:
        request.end = End(offset, span.finish)
        request.detail = span.detail
        request.engine_ms = span.engine_ms
    return Extended(session, request, part)


def _repeats(request: RequestState, span: Span) -> bool:
    """R2: a resent span meets an accepted one at the same boundaries, with the same tokens."""
    low, high = span.start * WIDTH_BYTES, (span.start + span.count) * WIDTH_BYTES
    return any((part.start, part.size) == (span.start, span.count) for part in request.parts) and request.tokens[low:high] == span.tokens


def _cancel(session: SessionState, offset: int, cancel: Cancel) -> RequestEnded | None:
    request = session.requests.get(cancel.request)
    if request is None or request.end is not None:
        return None
    request.end = End(offset, "cancelled")
    request.detail = cancel.reason
    return RequestEnded(session, request)


def _close(session: SessionState, offset: int, close: Close) -> SessionEnded | None:
    if close.idle and session.last > close.seen:
        return None
    session.close = close
    _end_session(session, offset)
    return SessionEnded(session)


def _end_session(session: SessionState, offset: int) -> None:
    session.ended_at = offset
    for request in session.running():
        request.end = End(offset, "closed")
