"""Which requests the engine may work on now, and which it must not touch again (Poison). Pure.

A request on which two owners in a row died without progress is suspect: it runs alone, so that a third death says which request kills.
After three it is refused, and the owner ends it as `failed`. Invariants: while a suspect runs, nothing else does; suspects of a partition
run in the order of the fold, which blames the oldest; of those that start together, the ones with the least left to generate start first:
after a takeover there are many, and what is nearly done frees its place in the engine's batch soon.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from workers.ledger import SUSPECT_DEATHS, RequestState, SessionState
from workers.rollout.engines.base import JobId

FATAL_DEATHS = 3


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that wants to run under an epoch."""

    id: JobId
    session: SessionState
    request: RequestState

    @property
    def is_poison(self) -> bool:
        """It has killed too often to be tried again."""
        return self.request.deaths >= FATAL_DEATHS

    @property
    def remainder(self) -> int:
        """Tokens that it may still generate."""
        return self.request.record.sampling.max_tokens - self.request.accepted


@dataclass
class Admission:
    """Who waits and who runs."""

    _waiting: deque[Candidate] = field(default_factory=deque)
    _suspects: deque[Candidate] = field(default_factory=deque)
    _running: set[JobId] = field(default_factory=set)
    _alone: JobId | None = None

    def offer(self, candidate: Candidate) -> None:
        """Put a request in line."""
        line = self._suspects if candidate.request.deaths >= SUSPECT_DEATHS else self._waiting
        line.append(candidate)

    def take(self) -> list[Candidate]:
        """Those that start now."""
        if self._alone is not None or (self._suspects and self._running):
            return []
        if self._suspects:
            suspect = self._suspects.popleft()
            self._alone = suspect.id
            return self._start([suspect])
        waiting, self._waiting = sorted(self._waiting, key=lambda candidate: candidate.remainder), deque()
        return self._start(waiting)

    def end(self, job: JobId) -> None:
        """A request ended, or its partition was given up."""
        self._running.discard(job)
        if self._alone == job:
            self._alone = None
        self._waiting = deque(candidate for candidate in self._waiting if candidate.id != job)
        self._suspects = deque(candidate for candidate in self._suspects if candidate.id != job)

    def release(self, partition: int) -> list[JobId]:
        """Forget a partition's requests; answers those that ran."""
        running = [job for job in self._running if job.partition == partition]
        for candidate in [*self._waiting, *self._suspects]:
            if candidate.id.partition == partition:
                self.end(candidate.id)
        for job in running:
            self.end(job)
        return running

    def _start(self, candidates: list[Candidate]) -> list[Candidate]:
        self._running.update(candidate.id for candidate in candidates)
        return candidates
