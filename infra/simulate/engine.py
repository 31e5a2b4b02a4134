"""An inference engine as a fluid: each running request gets one token an iteration, and an iteration over n takes A + b n.

Invariants: the tokens that a session has, and those that are left, add up to its turn's length; a context that another engine has, or
that an update flushed, is computed again, and counted. Prefill and the load of a version stop decoding.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import count

from infra.simulate.clock import Clock
from infra.simulate.sessions import Session
from workers.scheduler.training import Costs

__all__ = ["Engine", "Work"]

ROUNDING = 1e-4


@dataclass(slots=True)
class Work:
    """Sums: seconds with a request, without those of loading; tokens computed again."""

    busy_s: float = 0.0
    reprefilled: float = 0.0


class Engine:
    """Of one node; `work` is counted there. `ended` is called for each session whose request is complete."""

    _names = count()

    def __init__(self, clock: Clock, costs: Costs, capacity: float, work: Work, ended: Callable[[Session], None]) -> None:
        self.work = work
        self.version = 0
        self.running: dict[Session, None] = {}
        self.waiting: deque[Session] = deque()
        self._clock, self._costs, self._capacity, self._ended = clock, costs, capacity, ended
        self._name, self._flushes = next(self._names), 0
        self._ends: list[tuple[float, int, Session]] = []
        self._numbers = count()
        self._position = 0.0  # tokens that a request would have that ran since the beginning
        self._at_s = self._stalled_until_s = clock.now_s
        self._planned = 0
        self._update: int | None = None

    @property
    def load(self) -> int:
        """Requests here."""
        return len(self.running) + len(self.waiting)

    def context_tokens(self) -> float:
        """In the caches of running requests."""
        self._advance()
        return sum(session.context + self._position - session.mark for session in self.running)

    def admit(self, session: Session) -> None:
        """Run a request, at once or when there is room."""
        self._advance()
        self.waiting.append(session)
        self._fill()
        self._plan()

    def abort(self) -> list[Session]:
        """Let go of all requests; they keep what they have."""
        self._advance()
        stopped = [*self.running, *self.waiting]
        for session in self.running:
            self._settle(session)
        self.running.clear()
        self._ends.clear()
        self.waiting.clear()
        self._apply_update()
        self._plan()
        return stopped

    def drop(self, session: Session) -> None:
        """Let go of one."""
        self._advance()
        if session in self.running:
            self._settle(session)
            del self.running[session]
            self._ends = [entry for entry in self._ends if entry[2] is not session]
            heapq.heapify(self._ends)
        else:
            self.waiting.remove(session)
        self._fill()
        self._plan()

    def update(self, version: int, *, is_partial: bool) -> None:
        """Load a version: at once, in the middle of requests, or when those that run have ended."""
        self._advance()
        self._update = version
        if is_partial or not self.running:
            self._apply_update()
        self._fill()
        self._plan()

    def tokens_within(self, seconds: float) -> float:
        """What each running request samples in this time."""
        return seconds / self._iteration_s() if self.running else 0.0

    def _apply_update(self) -> None:
        if self._update is None:
            return
        for session in self.running:
            self._settle(session)
        self.version, self._update = self._update, None
        self._flushes += 1
        again = sum(session.context for session in self.running)
        for session in self.running:
            session.cache = (self._name, self._flushes)
        self.work.reprefilled += again
        self._stall(self._costs.sync_s + self._prefill_s(again))
        if self.running:
            self.work.busy_s -= self._costs.sync_s

    def _advance(self) -> None:
        now_s = self._clock.now_s
        if self.running:
            self.work.busy_s += now_s - self._at_s
            begin_s = max(self._at_s, self._stalled_until_s)
            if now_s > begin_s:
                self._position += (now_s - begin_s) / self._iteration_s()
        self._at_s = now_s

    def _iteration_s(self) -> float:
        return (self._costs.iteration_s + len(self.running) * self._costs.request_s) / self._capacity

    def _prefill_s(self, tokens: float) -> float:
        return tokens / (self._costs.prefill_tokens_per_s * self._capacity)

    def _stall(self, seconds: float) -> None:
        self._stalled_until_s = max(self._stalled_until_s, self._clock.now_s) + seconds

    def _fill(self) -> None:
        while self.waiting and len(self.running) < self._costs.slots and self._update is None:
            self._begin(self.waiting.popleft())

    def _begin(self, session: Session) -> None:
        again = 0.0 if session.cache == (self._name, self._flushes) else session.context
        self.work.reprefilled += again
        self._stall(self._prefill_s(again + session.fresh))
        session.context += session.fresh
        session.fresh, session.cache, session.mark = 0.0, (self._name, self._flushes), self._position
        self.running[session] = None
        heapq.heappush(self._ends, (self._position + session.left, next(self._numbers), session))

    def _settle(self, session: Session) -> None:
        session.sampled(self.version, min(self._position - session.mark, session.left))
        session.mark = self._position

    def _plan(self) -> None:
        self._planned += 1
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._position)
            begin_s = max(self._clock.now_s, self._stalled_until_s)
            self._clock.at(begin_s + left * self._iteration_s(), partial(self._due, self._planned))

    def _due(self, planned: int) -> None:
        if planned != self._planned:
            return
        self._advance()
        done = []
        while self._ends and self._ends[0][0] <= self._position + ROUNDING:
            session = heapq.heappop(self._ends)[2]
            self._settle(session)
            session.sampled(self.version, session.left)
            del self.running[session]
            done.append(session)
        if not self.running:
            self._apply_update()
        self._fill()
        self._plan()
        for session in done:
            self._ended(session)
