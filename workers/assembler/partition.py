"""One partition of `sessions` as the assembler holds it: the fold, and what of it is not finished. No I/O.

Invariants: an ended session is remembered until its Trajectory is acknowledged, so `position()` never passes a session whose Trajectory may
be missing from the log; acknowledgements are looked at in the order in which the Trajectories were sent, which is Close order.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.identity import Position
from schemas.record import Record
from schemas.session import Close
from streams.codec import Entry
from streams.writer import Receipt
from workers.assembler.deadlines import Deadlines
from workers.ledger import Claimed, Ledger, SessionEnded, SessionState
from workers.positions import Start
from workers.snapshot import Backlog, Snapshot, snapshot_of

__all__ = ["HeldPartition"]


class _Sent(NamedTuple):
    session: SessionState
    receipt: Receipt


@dataclass
class HeldPartition:
    """State of one partition for one assignment; dropped with it. `kept` is the Position that was committed last."""

    ledger: Ledger
    deadlines: Deadlines
    kept: Position | None = None
    backlog: Backlog = field(default_factory=Backlog)
    _sent: deque[_Sent] = field(default_factory=deque)

    @classmethod
    def begin(cls, start: Start, deadlines: Deadlines, now_s: float) -> HeldPartition:
        """At a Position, or with what a snapshot holds."""
        held = cls(start.ledger(), deadlines)
        if start.snapshot is not None:
            deadlines.resume(held.ledger.sessions.values(), start.snapshot.opened_ms, start.snapshot.at_ms, now_s)
        return held

    def take(self, entry: Entry[Record], now_s: float) -> SessionState | None:
        """Fold one record; answers the session that it closed, if it did."""
        self.backlog.saw(entry.offset, entry.record)
        change = self.ledger.apply(entry.offset, entry.record)
        if change is None:
            return None
        if isinstance(change, Claimed):
            self._forget(change.ended)
            return None
        self.deadlines.saw(change.session, entry.timestamp_ms, now_s)
        return change.session if isinstance(change, SessionEnded) else None

    def sent(self, session: SessionState, receipt: Receipt) -> None:
        """The session's Trajectory is on its way."""
        self._sent.append(_Sent(session, receipt))

    def settle(self) -> int:
        """Forget the sessions whose Trajectories are acknowledged; answers how many."""
        count = 0
        while self._sent and self._sent[0].receipt.offset is not None:
            self.ledger.forget(self._sent.popleft().session)
            count += 1
        return count

    def snapshot(self, topic: str, partition: int) -> Snapshot | None:
        """The fold as it is; None while a session that ended waits for its acknowledgement: a snapshot holds open ones only."""
        if self._sent:
            return None
        return snapshot_of(self.ledger, topic, partition, at_ms=self.deadlines.newest_ms, opened_ms=self.deadlines.opened_ms)

    def due(self, now_s: float) -> list[Close]:
        """The Closes to be written now."""
        return self.deadlines.due(now_s)

    def position(self) -> Position | None:
        """Where another assembler may take over; None while nothing counts."""
        return None if self.ledger.floor is not None else self.ledger.position()

    def _forget(self, ended: list[SessionState]) -> None:
        for session in ended:
            self.deadlines.forget(session)
            self.ledger.forget(session)
