"""A trainer without torch: weights that are a digest of every plan and of every trajectory that it trained, and a bench without a thread.

Equal weights mean that the same trajectories were trained by the same plans in the same order: P4 is checked by computing them again.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import anyio
import msgspec

from schemas.training import Plan, WeightVersion
from schemas.trajectory import Trajectory
from trainer.trainee import Bench, Trained, Trainee

T = TypeVar("T")
P = ParamSpec("P")

INITIAL = "initial"
WORK_S = 0.2
"""The longest piece of work on the bench."""


def after(weights: str, plan: Plan, trajectories: Sequence[Trajectory]) -> str:
    """The weights after one more step."""
    digest = hashlib.sha256(weights.encode())
    digest.update(msgspec.msgpack.encode(plan))
    digest.update(msgspec.msgpack.encode(list(trajectories)))
    return digest.hexdigest()


@dataclass
class Disk:
    """What outlives a trainer's process: checkpoints by step."""

    checkpoints: dict[int, str] = field(default_factory=dict)


@dataclass
class DigestTrainee(Trainee):
    """See `trainer.trainee.Trainee`."""

    disk: Disk
    weights: str = INITIAL

    def begin(self, initial: WeightVersion | None) -> WeightVersion:
        """Stand at version 0."""
        self.weights = INITIAL
        return initial or self._version(0, None)

    def restore(self, committed: Mapping[int, str]) -> int | None:
        """Stand at the newest committed checkpoint."""
        found = [step for step, weights in self.disk.checkpoints.items() if committed.get(step) == weights]
        if not found:
            return None
        self.weights = self.disk.checkpoints[max(found)]
        return max(found)

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        """One step."""
        self.weights = after(self.weights, plan, trajectories)
        return Trained(weights_sha256=self.weights, optimizer_sha256="", numerics={}, metrics={})

    def publish(self, version: int, step: int) -> WeightVersion:
        """There are no files."""
        return self._version(version, step)

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        """Keep a checkpoint."""
        self.disk.checkpoints[step] = self.weights

    def _version(self, version: int, step: int | None) -> WeightVersion:
        return WeightVersion(version=version, step=step, files=[], weights_sha256=self.weights, tokenizer_sha256="", template_sha256="")


class VirtualBench(Bench):
    """Work is done on the event loop, and takes virtual time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance
        self._is_busy = False

    @property
    def is_busy(self) -> bool:
        """A piece of work is being done."""
        return self._is_busy

    async def do(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do one piece of work after a while."""
        self._is_busy = True
        await anyio.sleep(self._chance.random() * WORK_S)
        self._is_busy = False
        return work(*args, **kwargs)
