"""From an engine to its one consumer: which jobs are live, and what was emitted and not read yet. On the event loop alone.

Invariants:
- after `drop(job)` no emission of that job is delivered, neither one waiting here nor one still on its way from the engine: only emissions
  of live jobs pass, and the id of a job is never used again;
- emissions are delivered in the order of `post`; a finish is the last of its job;
- an engine that died raises EngineError in its consumer, after what it emitted before.

What waits here is bounded by the budgets of the jobs that were submitted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import anyio

from schemas.errors import EngineError
from workers.rollout.engines.base import Emission, JobId

__all__ = ["Outbox"]


class Outbox:
    """The live jobs, the emissions that wait, and the end of both."""

    def __init__(self) -> None:
        self._live: set[JobId] = set()
        self._waiting: list[Emission] = []
        self._changed = anyio.Event()
        self._error: EngineError | None = None
        self._is_closed = False

    @property
    def live(self) -> int:
        """Number of jobs that were submitted and have neither finished nor been dropped."""
        return len(self._live)

    def open(self, job: JobId) -> None:
        """Let emissions of a job pass from now on.

        :raises EngineError: the engine is dead or closed, or the job runs already.
        """
        self.require_alive()
        if job in self._live:
            raise EngineError(f"{job} runs already: submit it under a new epoch")
        self._live.add(job)

    def drop(self, job: JobId) -> bool:
        """Forget a job and what it emitted; whether it was live."""
        if job not in self._live:
            return False
        self._live.remove(job)
        self._waiting = [emission for emission in self._waiting if emission.id != job]
        return True

    def post(self, emissions: Iterable[Emission]) -> None:
        """Take emissions; those of jobs that are not live any more are lost."""
        for emission in emissions:
            if emission.id in self._live:
                self._waiting.append(emission)
                if emission.finish is not None:
                    self._live.remove(emission.id)
        if self._waiting:
            self._changed.set()

    def fail(self, error: EngineError) -> None:
        """The engine died."""
        self._error = self._error or error
        self._changed.set()

    def close(self) -> None:
        """The engine closes: the consumer's iteration ends after what waits."""
        self._is_closed = True
        self._changed.set()

    def require_alive(self) -> None:
        """Nothing is taken by an engine that cannot do it.

        :raises EngineError: the engine died or was closed.
        """
        if self._error is not None:
            raise EngineError(*self._error.args) from self._error
        if self._is_closed:
            raise EngineError("the engine is closed")

    def require_idle(self) -> None:
        """Nothing of a job may be lost.

        :raises EngineError: a job is live; or the engine died or was closed.
        """
        self.require_alive()
        if self._live:
            raise EngineError(f"{len(self._live)} jobs are live: an engine sleeps when all were aborted or have finished")

    async def batches(self) -> AsyncIterator[list[Emission]]:
        """All emissions, as many at once as wait, until the engine closes.

        :raises EngineError: the engine died.
        """
        while True:
            if self._waiting:
                batch, self._waiting = self._waiting, []
                yield batch
            elif self._error is not None:
                self.require_alive()
            elif self._is_closed:
                return
            else:
                self._changed = anyio.Event()
                await self._changed.wait()
