"""The paced engine: known tokens at a set rate, for load and fault tests. No weights, no thread.

Invariants:
- token number i of a request is `version * 10_000 + i`, its logprob `−(i % 7) / 8`: whatever reads the log can tell from the tokens alone
  that none is lost, doubled or out of order, and under which version each was made;
- the first token of a job comes after `first_token_s`, the others every `1 / tokens_per_s` after it, on the loop's clock; a late loop
  delivers what is due, so the rate holds on average;
- it needs a first `load` like any engine, and any WeightVersion will do: its files are not read.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.lowlevel

from schemas.span import Finish
from schemas.training import WeightVersion
from workers.rollout.engines.base import Emission, Engine, Job, JobId, Load
from workers.rollout.engines.ending import ending
from workers.rollout.engines.outbox import Outbox

__all__ = ["TOKENS_PER_VERSION", "PacedEngine", "paced_engine"]

TOKENS_PER_VERSION = 10_000
"""Room for indexes within a version: a request has fewer tokens than this."""


@asynccontextmanager
async def paced_engine(tokens_per_s: float = 100.0, first_token_s: float = 0.0) -> AsyncIterator[Engine]:
    """An engine that emits `tokens_per_s` per request, however many run, the first after `first_token_s`."""
    engine = PacedEngine(tokens_per_s, first_token_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(engine.run)
        try:
            yield engine
        finally:
            engine.close()
            tasks.cancel_scope.cancel()


@dataclass(slots=True)
class _Pace:
    """One running job: how many tokens it has, and when it began to count them."""

    job: Job
    emitted: int
    begun_s: float
    made: int = 0


class PacedEngine:
    """Open it with `paced_engine`."""

    def __init__(self, tokens_per_s: float, first_token_s: float) -> None:
        if tokens_per_s <= 0 or first_token_s < 0:
            raise ValueError(f"a rate of {tokens_per_s} tokens/s after {first_token_s} s is not possible")
        self._period_s, self._first_token_s = 1.0 / tokens_per_s, first_token_s
        self._version = -1
        self._tokens = 0
        self._outbox = Outbox()
        self._running: dict[JobId, _Pace] = {}
        self._waiting: list[Job] = []
        self._due: list[tuple[float, JobId]] = []
        self._woken = anyio.Event()
        self._is_held = False

    @property
    def version(self) -> int:
        """The version of the next tokens; −1 before the first `load` and while it sleeps."""
        return self._version

    def load_now(self) -> Load:
        """Counters of this moment."""
        return Load(running=len(self._running), waiting=len(self._waiting), tokens=self._tokens)

    async def load(self, version: WeightVersion) -> None:
        """Tokens name this version from now on; what was due under the old one comes first.

        :raises EngineError: the engine is closed.
        """
        self._outbox.require_alive()
        self._emit_due()
        self._version = version.version
        waiting, self._waiting = self._waiting, []
        for job in waiting:
            self._begin(job)
        # The consumer was woken by what came due under the old version; it runs before this returns, and nothing new may come meanwhile.
        self._is_held = True
        try:
            await anyio.lowlevel.checkpoint()
        finally:
            self._is_held = False

    async def sleep(self) -> None:
        """Be without a version until the next `load`.

        :raises EngineError: a job is live; or the engine is closed.
        """
        self._outbox.require_idle()
        self._version = -1

    async def submit(self, job: Job) -> None:
        """Take a job; without a version it waits.

        :raises EngineError: the engine is closed, or the job runs already.
        """
        self._outbox.open(job.id)
        finish = _ending(job, job.emitted)
        if finish is not None:
            version = max(0, self._version)
            self._outbox.post([Emission(job.id, [], [], version, version, finish)])
        elif self._version < 0:
            self._waiting.append(job)
        else:
            self._begin(job)

    async def abort(self, job: JobId) -> None:
        """End a job; what it emitted and nobody read yet is not delivered any more."""
        self._outbox.drop(job)
        self._running.pop(job, None)
        self._waiting = [waiting for waiting in self._waiting if waiting.id != job]

    def emissions(self) -> AsyncIterator[list[Emission]]:
        """All emissions until the engine closes."""
        return self._outbox.batches()

    def close(self) -> None:
        """End the iteration of emissions."""
        self._outbox.close()

    async def run(self) -> None:
        """Emit what is due, until cancelled."""
        while True:
            self._woken = anyio.Event()
            self._emit_due()
            if self._due:
                with anyio.move_on_at(self._due[0][0]):
                    await self._woken.wait()
            else:
                await self._woken.wait()

    def _begin(self, job: Job) -> None:
        begun_s = anyio.current_time() + self._first_token_s
        self._running[job.id] = _Pace(job, job.emitted, begun_s)
        heapq.heappush(self._due, (begun_s, job.id))
        self._woken.set()

    def _emit_due(self) -> None:
        now_s = anyio.current_time()
        emissions = []
        while self._due and self._due[0][0] <= now_s and not self._is_held:
            _, name = heapq.heappop(self._due)
            if pace := self._running.get(name):
                emissions.append(self._advance(pace, now_s))
        self._outbox.post(emissions)

    def _advance(self, pace: _Pace, now_s: float) -> Emission:
        """All tokens of a job that are due at `now_s`: at least one."""
        due = max(pace.made + 1, int((now_s - pace.begun_s) / self._period_s) + 1)
        first, finish = pace.emitted, None
        while pace.made < due and finish is None:
            pace.made += 1
            pace.emitted += 1
            finish = _ending(pace.job, pace.emitted)
        if finish is None:
            heapq.heappush(self._due, (pace.begun_s + pace.made * self._period_s, pace.job.id))
        else:
            del self._running[pace.job.id]
        return self._emission(pace.job.id, range(first, pace.emitted), finish)

    def _emission(self, job: JobId, indexes: range, finish: Finish | None) -> Emission:
        self._tokens += len(indexes)
        tokens = [self._version * TOKENS_PER_VERSION + index for index in indexes]
        return Emission(job, tokens, [-(index % 7) / 8 for index in indexes], self._version, self._version, finish)


def _ending(job: Job, emitted: int) -> Finish | None:
    """A stop token is named by its index: nobody who asks knows under which version it will be made."""
    return ending(job.sampling, emitted, emitted - 1)
