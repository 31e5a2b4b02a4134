"""When the assembler must close a session of one partition: nothing ran or happened for a while, or it is too old. Pure.

Silence is counted from the moment at which this process read the session's last counted record: a restarted assembler waits anew. Age
is counted on the log's own stamps: "now" is the newest one read and the time that passed here since, so no other machine's clock matters.

Invariants: a session with a running request is never closed as idle; an idle Close names the last counted record (`seen`), so the ledger
ignores it if one followed; each silence is answered once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from schemas.session import Close
from workers.ledger import SessionState

__all__ = ["Deadlines"]


class _Silence(NamedTuple):
    session: SessionState
    since_s: float


class Deadlines:
    """The deadlines of one partition's open sessions. Times in seconds of any clock that only grows."""

    def __init__(self, idle_s: float, max_age_s: float) -> None:
        self._idle_s, self._max_age_s = idle_s, max_age_s
        self._silent: dict[int, _Silence] = {}  # the longest silence first
        self._opened_ms: dict[int, int] = {}  # the oldest session first
        self._newest_ms, self._newest_read_s = 0, 0.0

    def saw(self, session: SessionState, timestamp_ms: int, now_s: float) -> None:
        """A record of the session counted; it was stamped `timestamp_ms` and is read now."""
        self._newest_ms, self._newest_read_s = max(self._newest_ms, timestamp_ms), now_s
        self._silent.pop(session.offset, None)
        if not session.is_open:
            self._opened_ms.pop(session.offset, None)
            return
        self._silent[session.offset] = _Silence(session, now_s)
        if session.last == session.offset:
            self._opened_ms[session.offset] = timestamp_ms

    def resume(self, sessions: Iterable[SessionState], opened_ms: Mapping[int, int], at_ms: int, now_s: float) -> None:
        """These sessions (oldest first) are open as a snapshot says: of `at_ms`, by the log's stamps. One without a stamp is too old."""
        self._newest_ms, self._newest_read_s = at_ms, now_s
        for session in sessions:
            self._silent[session.offset] = _Silence(session, now_s)
            self._opened_ms[session.offset] = opened_ms.get(session.offset, 0)

    @property
    def opened_ms(self) -> dict[int, int]:
        """When the open sessions opened, those whose Close for age is on its way left out."""
        return dict(self._opened_ms)

    @property
    def newest_ms(self) -> int:
        """The newest stamp read."""
        return self._newest_ms

    def forget(self, session: SessionState) -> None:
        """The session ended without a record of its own: a reset."""
        self._silent.pop(session.offset, None)
        self._opened_ms.pop(session.offset, None)

    def due(self, now_s: float) -> list[Close]:
        """The Closes to be written now."""
        return [*self._idle(now_s), *self._expired(now_s)]

    def _idle(self, now_s: float) -> Iterator[Close]:
        while self._silent:
            session, since_s = next(iter(self._silent.values()))
            if now_s - since_s < self._idle_s:
                return
            del self._silent[session.offset]  # the next counted record brings it back: the end of a request is one
            if not any(session.running()):
                yield Close(session=session.offset, outcome="idle", idle=True, seen=session.last)

    def _expired(self, now_s: float) -> Iterator[Close]:
        log_now_ms = self._newest_ms + (now_s - self._newest_read_s) * 1000
        while self._opened_ms:
            offset, opened_ms = next(iter(self._opened_ms.items()))
            if log_now_ms - opened_ms < self._max_age_s * 1000:
                return
            del self._opened_ms[offset]
            yield Close(session=offset, outcome="expired")
