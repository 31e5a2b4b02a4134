"""What the log says of all sessions, and who waits for it to say more: the folds of every partition and the gateway's waiters.

One task reads all partitions and wakes those whom a change concerns; nothing polls.

Invariants: a waiter learns of a change only after the fold counted it, so an agent is shown nothing else; a call whose agent left
gets exactly one Cancel, also if its Request is read later; what is kept of ended sessions is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from time import monotonic
from typing import NamedTuple

import anyio

from models.chat import Chat
from schemas.identity import SessionId
from schemas.record import Record
from schemas.session import Open
from schemas.topics import SESSIONS
from streams.codec import Entry
from streams.log import Log, LogReader
from workers.gateway.render import Conversation
from workers.ledger import Claimed, Extended, Ledger, Opened, Requested, RequestEnded, RequestState, SessionEnded, SessionState
from workers.positions import Start

READ_S = 1.0
"""Longest read without records; gaps at the end of a partition are noticed after it."""


class Ended(NamedTuple):
    """What is remembered of an ended session."""

    check: str
    how: str
    outcome: str
    reward: float | None
    requests: int


class Waiter:
    """One call that waits for its request. Times are `time.monotonic`, seconds; at `progress_at` the fold gained something last."""

    __slots__ = ("_event", "first_span_at", "nonce", "partition", "progress_at", "readable_at", "request", "session", "streaming")

    def __init__(self, partition: int, session: SessionState, nonce: bytes, streaming: bool) -> None:
        self.partition, self.session, self.nonce, self.streaming = partition, session, nonce, streaming
        self.request: RequestState | None = None
        self.progress_at = monotonic()
        self.readable_at: float | None = None
        self.first_span_at: float | None = None
        self._event = anyio.Event()

    def is_over(self) -> bool:
        """Nothing more will come: the request ended, or the session did before the request was read."""
        return not self.session.is_open if self.request is None else self.request.end is not None

    def wake(self) -> None:
        """Let the call look again."""
        self._event.set()

    async def news(self) -> None:
        """Wait to be woken from now on: what woke it before has been looked at."""
        if self._event.is_set():
            self._event = anyio.Event()
        await self._event.wait()


@dataclass(slots=True)
class Served:
    """What this gateway keeps of a session that it serves: how to render its calls, who waits for a Request (by nonce) or for the end.

    `taken`: nonces of all Requests that a call ever waited for. `abandoned`: Requests without a waiter that are to be cancelled when they
    are read, and why.
    """

    conversation: Conversation
    waiters: dict[bytes, list[Waiter]] = field(default_factory=dict)
    taken: set[bytes] = field(default_factory=set)
    abandoned: dict[bytes, str] = field(default_factory=dict)
    ends: list[anyio.Event] = field(default_factory=list)

    def all_waiters(self) -> Iterator[Waiter]:
        """Every call of the session that waits."""
        return (waiter for waiters in self.waiters.values() for waiter in waiters)


class Leaver(NamedTuple):
    """A request whose agent left."""

    partition: int
    session: int
    request: int
    reason: str


class Opening:
    """An Open that was written and has not been read back. `session` is the first one read with its nonce; None if that does not count."""

    def __init__(self) -> None:
        self.session: SessionState | None = None
        self.read_back = anyio.Event()


class Mirror:
    """The folds, by partition. `on_leaver` is told of each request to cancel; it must not block."""

    def __init__(self, starts: Mapping[int, Start], chat: Chat, ended_limit: int, on_leaver: Callable[[Leaver], None]) -> None:
        self.ledgers: dict[int, Ledger] = {partition: start.ledger() for partition, start in starts.items()}
        self.caught_up = False
        self.is_dismissed = False
        self._starts = dict(starts)
        self._fresh: dict[int, Start] = {}
        self._chat = chat
        self._on_leaver = on_leaver
        self._ended_limit = ended_limit
        self._ended: dict[tuple[int, int], Ended] = {}
        self._openings: dict[bytes, Opening] = {}
        self._served: dict[SessionState, Served] = {}
        self._catching_up: list[tuple[dict[int, int], anyio.Event]] = []
        self._began: dict[int, int] = {}

    async def run(self, reader: LogReader) -> None:
        """Read all partitions, for ever."""
        while True:
            for entry in await reader.read(timeout_s=READ_S):
                self.apply(entry)
            self._begin_anew(reader)
            if self._catching_up:
                self._wake_caught_up({partition: reader.position(partition) for partition in self.ledgers})

    def begin(self) -> None:
        """All that the log held at the start was read: this gateway may answer. What stands there now is of earlier lives, or of others."""
        self._began = {partition: ledger.next for partition, ledger in self.ledgers.items()}
        self.caught_up = True

    def is_inherited(self, partition: int, request: RequestState) -> bool:
        """Whether the request stood in the log before this gateway answered anything."""
        return request.offset < self._began.get(partition, 0)

    def lost(self) -> list[int]:
        """The partitions of which nothing counts: retention passed every Position, and no reset was read yet."""
        return [partition for partition, ledger in self.ledgers.items() if ledger.floor is not None]

    def restart(self, partition: int, start: Start) -> None:
        """Read a partition of which nothing counts anew from here, after the read that is under way."""
        self._fresh[partition] = start

    def apply(self, entry: Entry[Record]) -> None:
        """Take in one record."""
        match self.ledgers[entry.partition].apply(entry.offset, entry.record):
            case Extended(session, request):
                self._progressed(session, request)
            case Requested(session, request):
                self._requested(entry.partition, session, request)
            case RequestEnded(session, request):
                self._progressed(session, request)
            case Opened(session):
                self._opened(session)
            case SessionEnded(session):
                self._session_ended(entry.partition, session)
            case Claimed(_, ended):
                for session in ended:
                    self._session_ended(entry.partition, session)
            case None:
                self._discounted(entry.record)

    def find(self, session_id: SessionId) -> SessionState | Ended | None:
        """The session with this id, ended ones too; None where there is none, or the check is not its own."""
        ledger = self.ledgers.get(session_id.partition)
        if ledger is None:
            return None
        session = ledger.sessions.get(session_id.offset)
        if session is not None:
            return session if session.record.check == session_id.check else None
        ended = self._ended.get((session_id.partition, session_id.offset))
        if ended is not None:
            return ended if ended.check == session_id.check else None
        if session_id.offset < self._starts[session_id.partition].position.offset:
            return Ended(session_id.check, "unknown", "", None, 0)  # R5: every session before a Position has ended
        return None

    def expect_open(self, nonce: bytes) -> Opening:
        """Register before writing an Open."""
        opening = self._openings[nonce] = Opening()
        return opening

    def forget_open(self, nonce: bytes) -> None:
        """Nobody waits for this Open any more."""
        self._openings.pop(nonce, None)

    def serve(self, session: SessionState) -> Served:
        """What is kept of an open session that this gateway serves."""
        served = self._served.get(session)
        if served is None:
            served = self._served[session] = Served(Conversation(self._chat))
        return served

    def expect_request(
        self, partition: int, session: SessionState, nonce: bytes, streaming: bool, request: RequestState | None = None
    ) -> Waiter:
        """Register before writing a Request, or to wait for a `request` that stands in the log. End it by `leave`."""
        waiter = Waiter(partition, session, nonce, streaming)
        if request is not None:
            waiter.request, waiter.readable_at = request, waiter.progress_at
        served = self.serve(session)
        served.waiters.setdefault(nonce, []).append(waiter)
        served.taken.add(nonce)
        served.abandoned.pop(nonce, None)
        return waiter

    def leave(self, waiter: Waiter, reason: str) -> None:
        """The call waits no more. If nobody else waits for its request, and it has no end yet, it is cancelled, now or when it is read."""
        served = self._served.get(waiter.session)
        if served is None:
            return
        others = served.waiters[waiter.nonce]
        others.remove(waiter)
        if others:
            return
        del served.waiters[waiter.nonce]
        if waiter.is_over():
            return
        if waiter.request is None:
            served.abandoned[waiter.nonce] = reason
        else:
            self._on_leaver(Leaver(waiter.partition, waiter.session.offset, waiter.request.offset, reason))

    def dismiss(self) -> None:
        """The gateway stops: every call is to give up now."""
        self.is_dismissed = True
        for served in self._served.values():
            for waiter in served.all_waiters():
                waiter.wake()

    async def end_of(self, session: SessionState) -> None:
        """Wait until the session's end was read."""
        if session.is_open:
            event = anyio.Event()
            self.serve(session).ends.append(event)
            await event.wait()

    async def read_to_end(self, log: Log, partitions: Iterable[int] | None = None) -> None:
        """Wait until everything that the partitions (default: all) hold now was taken in."""
        places = {log.place(SESSIONS, partition): partition for partition in (self.ledgers if partitions is None else partitions)}
        ends = {places[place]: end for place, end in (await log.broker.ends(list(places))).items()}
        if any(self.ledgers[partition].next < end for partition, end in ends.items()):
            event = anyio.Event()
            self._catching_up.append((ends, event))
            await event.wait()

    def progress(self) -> int:
        """A number that changes while records are read."""
        return sum(ledger.next for ledger in self.ledgers.values())

    def claimed(self) -> int:
        """How many partitions an owner ever claimed."""
        return sum(ledger.epoch >= 0 for ledger in self.ledgers.values())

    def _begin_anew(self, reader: LogReader) -> None:
        for partition in self._fresh.keys() & set(self.lost()):
            start = self._starts[partition] = self._fresh[partition]
            self.ledgers[partition] = start.ledger()
            reader.remove(partition)
            reader.add(partition, start.position.offset)
        self._fresh.clear()

    def _progressed(self, session: SessionState, request: RequestState) -> None:
        served = self._served.get(session)
        if served is None:
            return
        for waiter in served.waiters.get(request.record.nonce, ()):
            waiter.progress_at = monotonic()
            if waiter.first_span_at is None:
                waiter.first_span_at = waiter.progress_at
            if waiter.streaming or request.end is not None:
                waiter.wake()

    def _requested(self, partition: int, session: SessionState, request: RequestState) -> None:
        served = self._served.get(session)
        if served is None:
            return
        reason = served.abandoned.pop(request.record.nonce, None)
        if reason is not None and request.end is None:
            self._on_leaver(Leaver(partition, session.offset, request.offset, reason))
        for waiter in served.waiters.get(request.record.nonce, ()):
            waiter.request = request
            waiter.readable_at = waiter.progress_at = monotonic()
            if request.end is not None:
                waiter.wake()

    def _opened(self, session: SessionState) -> None:
        opening = self._openings.pop(session.record.nonce, None)
        if opening is not None:
            opening.session = session
            opening.read_back.set()

    def _discounted(self, record: Record) -> None:
        """An Open in a partition of which nothing counts: whoever waits for it would wait in vain."""
        opening = self._openings.pop(record.nonce, None) if isinstance(record, Open) else None
        if opening is not None:
            opening.read_back.set()

    def _session_ended(self, partition: int, session: SessionState) -> None:
        self.ledgers[partition].forget(session)
        self._ended[partition, session.offset] = _summary(session)
        if len(self._ended) > self._ended_limit:
            del self._ended[next(iter(self._ended))]
        served = self._served.pop(session, None)
        if served is None:
            return
        for waiter in served.all_waiters():
            waiter.wake()
        for event in served.ends:
            event.set()

    def _wake_caught_up(self, positions: Mapping[int, int]) -> None:
        still = []
        for ends, event in self._catching_up:
            if all(positions[partition] >= end for partition, end in ends.items()):
                event.set()
            else:
                still.append((ends, event))
        self._catching_up = still


def _summary(session: SessionState) -> Ended:
    close = session.close
    if close is None:
        return Ended(session.record.check, "reset", "", None, len(session.requests))
    how = "idle" if close.idle else "closed"
    return Ended(session.record.check, how, close.outcome, close.reward, len(session.requests))
