"""The contract of an inference engine: what the owner of partitions may assume of torch, vLLM or the paced double.

Invariants that `tests/contract/test_engine.py` checks on every engine:
- tokens of a job come in order, each once, and every Emission names the version that sampled all its tokens;
- `load` is a barrier: emissions before its return carry the old version, those after it the new one, and running jobs go on, their
  caches computed again under the new weights (mode `exact`: `kv_version == version`);
- `sleep` gives back the memory of weights and caches: the version is −1, as before the first `load`, and a job waits for the next `load`,
  which wakes the engine;
- after `abort` returned, no token of that job comes any more; what came before stands;
- a job that continues (`prefix` holds earlier sampled tokens, `emitted` says how many) draws the tokens that an uninterrupted one with the
  same seed would have drawn under the same weights;
- logprobs are those of the distribution that was sampled: temperature applied, float32 nats (R11).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from schemas.session import Sampling
from schemas.span import Finish
from schemas.training import WeightVersion


class JobId(NamedTuple):
    """One try at one request: a request that comes back under a new epoch is another job, so late tokens of the old one are strangers."""

    partition: int
    request: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Job:
    """One request to generate for. `prefix` is the prompt followed by the `emitted` tokens that were already sampled.

    Without a seed in `sampling` an engine derives one from (partition, request), so that the next owner draws on alike.
    """

    id: JobId
    prefix: Sequence[int]
    sampling: Sampling
    emitted: int = 0


@dataclass(frozen=True, slots=True)
class Emission:
    """Tokens of one job since its last emission, all of one version. `finish` ends the job; `detail` explains `failed`."""

    id: JobId
    tokens: list[int]
    logprobs: list[float]
    version: int
    kv_version: int
    finish: Finish | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine does now, for status and scheduling. `tokens` counts all sampled since it started."""

    running: int = 0
    waiting: int = 0
    tokens: int = 0
    capacity: float = 1.0
    facts: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """A running engine. Its methods are called from one event loop; heavy work happens elsewhere (a thread or another process)."""

    @property
    def version(self) -> int:
        """The version whose weights are loaded; −1 before the first `load` and while the engine sleeps."""
        ...

    def load_now(self) -> Load:
        """Counters of this moment. Never blocks."""
        ...

    async def load(self, version: WeightVersion) -> None:
        """Replace the weights; the barrier described above.

        :raises EngineError: a file is missing or its digest differs, or the weights do not fit the model.
        """
        ...

    async def sleep(self) -> None:
        """Free weights and caches until the next `load`. To sleep twice is no error.

        :raises EngineError: a job is live: abort it first; or the engine is dead.
        """
        ...

    async def submit(self, job: Job) -> None:
        """Take a job. Stop tokens and budget are checked first: a job with nothing left to do finishes without a token.

        :raises EngineError: the engine is dead.
        """
        ...

    async def abort(self, job: JobId) -> None:
        """End a job without a further emission. An unknown job is no error."""
        ...

    def emissions(self) -> AsyncIterator[list[Emission]]:
        """All emissions, in batches, until the engine closes. One consumer only.

        :raises EngineError: the engine died.
        """
        ...


class EngineFactory(Protocol):
    """Opens an engine for the length of a context."""

    def __call__(self) -> AbstractAsyncContextManager[Engine]:
        """Start the engine; leaving the context stops it within a deadline."""
        ...
