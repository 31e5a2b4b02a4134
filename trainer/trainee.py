"""The seam between the loop and the numbers: what is trained, and the one thread in which that happens. No torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, Protocol, TypeVar

import anyio
from anyio import to_thread

from schemas.training import Plan, WeightFile, WeightVersion
from schemas.trajectory import Trajectory

__all__ = ["Bench", "Trained", "Trainee", "Trains"]

T = TypeVar("T")
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Trained:
    """What a Step says of its arithmetic: hex digests of weights and optimizer after it, the numerics key (R7), figures for people."""

    weights_sha256: str
    optimizer_sha256: str
    numerics: dict[str, str]
    metrics: dict[str, float]


class Trains(Protocol):
    """Weights that training changes. All calls block."""

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        """All updates of one Step.

        :param trajectories: in the order of `plan.places`.
        :raises CorruptRecord: plan and trajectories do not fit.
        :raises SeamlessFlowError: a gradient is not finite.
        """
        ...


class Trainee(Trains, Protocol):
    """Weights with their optimizer, as a trainer has them. All calls block."""

    def begin(self, initial: WeightVersion | None) -> WeightVersion:
        """Stand at version 0: as announced, or, where nothing was announced yet, as in the model folder. Its files are then complete.

        :raises EngineError: the files of version 0 are not what the log says.
        :raises UsageError: the model folder cannot be used, or is not the one that the run began with.
        """
        ...

    def restore(self, committed: Mapping[int, str]) -> int | None:
        """Stand at the newest checkpoint with the step and weights digest of a pair in `committed`; answers its step, None without one.

        :raises UsageError: the checkpoint is damaged.
        """
        ...

    def publish(self, version: int, step: int) -> WeightVersion:
        """Write the weights as they are; their files are complete when this returns (R8)."""
        ...

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        """Write a checkpoint of the state after `step`, and remove old ones; `committed` as for `restore`."""
        ...

    def prune(self, files: Mapping[int, Sequence[WeightFile]], files_from: int, committed: Mapping[int, str]) -> list[int]:
        """Remove files of versions 1 … `files_from` − 1, but of those that a checkpoint belongs to; answers the versions that lost theirs.

        :param files: those of each version; `committed` as for `restore`.
        """
        return []


class Bench:
    """Where blocking work is done: one piece at a time, in a thread beside the event loop. A cancelled wait ends when its piece does."""

    def __init__(self) -> None:
        self._limiter = anyio.CapacityLimiter(1)

    @property
    def is_busy(self) -> bool:
        """A piece of work is being done."""
        return self._limiter.borrowed_tokens > 0

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do one piece of work and answer its result."""
        return await to_thread.run_sync(partial(work, *args, **kwargs), limiter=self._limiter)
