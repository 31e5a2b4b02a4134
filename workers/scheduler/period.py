"""How long one step takes, all in all, if so many nodes train: the figure by which roles are chosen. Pure.

The period of an arrangement is the time from one step to the next. Of T seconds of training and G seconds of gathering a batch, as much
overlaps as the bound on groups in flight lets generation run ahead. Two kinds of arrangement:

- *standing*: k nodes train and wait for the next batch: `T(k) + G(N - k) - overlap`, with no switch at all;
- *alternating*: k nodes leave generation when a batch is ready, and return after the step:
  `sleep + T(k) + what is left to gather * G(N) + wake * k / N + moves`, where a move is a context that is computed again elsewhere.

Colocated training is alternating with k = N, a disaggregated cluster is standing; what lies between is multiplexing.

Invariants: a period is never shorter than the training in it; with dearer switches no alternating arrangement becomes shorter, and no
standing one changes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from workers.scheduler.training import Training

__all__ = ["Arrangement", "Cluster", "alternating", "best", "standing"]

COUNTS = 64
"""How many numbers of trainers are compared in a large cluster: the period is smooth in it."""


class Arrangement(NamedTuple):
    """`trainers` of the nodes that alternate train; `stays`: they do so between steps, too. Times in seconds per step."""

    trainers: int
    stays: bool
    period_s: float
    train_s: float
    gather_s: float
    switch_s: float

    def __str__(self) -> str:
        kind = "stay" if self.stays else "return"
        return (
            f"{self.trainers} train and {kind}: a step each {self.period_s:.0f} s "
            f"({self.train_s:.0f} training, {self.gather_s:.0f} gathering, {self.switch_s:.0f} switching)"
        )


class Cluster:
    """Capacities: `alternating` of each node that may do both, in the order in which they would train; the sums of the others."""

    def __init__(self, alternating: Sequence[float], rollout: float = 0.0, train: float = 0.0) -> None:
        self.nodes, self.train = len(alternating), train
        self._slowest = list(accumulate(alternating, min, initial=math.inf))
        taken = list(accumulate(alternating, initial=0.0))
        self._left = [rollout + (taken[-1] - some) for some in taken]

    def training(self, trainers: int) -> float:
        """The capacity of a step on the first `trainers`. Its shares are equal, so the slowest node sets the pace."""
        return self.train + (trainers * self._slowest[trainers] if trainers else 0.0)

    def generating(self, trainers: int) -> float:
        """The capacity that is left for generation."""
        return self._left[trainers]


def best(cluster: Cluster, training: Training, stays: bool | None = None) -> Arrangement | None:
    """The arrangement with the shortest period, of one kind or of both; None where nobody can train. The fewest trainers among equals."""
    found = [
        arrangement
        for trainers in _counts(cluster.nodes, training)
        for arrangement in _arrangements(cluster, training, trainers, stays)
    ]
    return min(found, key=lambda arrangement: (arrangement.period_s, arrangement.trainers), default=None)


def standing(cluster: Cluster, training: Training, trainers: int) -> Arrangement:
    """`trainers` nodes that only train."""
    train_s = _train_s(cluster, training, trainers)
    left = cluster.generating(trainers)
    gather_s = _gather_s(left, training) + _update_s(left, training)
    overlap_s = min(train_s, gather_s, _ahead(training) * gather_s) if gather_s < math.inf else 0.0
    return Arrangement(trainers, True, train_s + (gather_s - overlap_s), train_s, gather_s, 0.0)


def alternating(cluster: Cluster, training: Training, trainers: int) -> Arrangement:
    """`trainers` nodes that generate between steps."""
    train_s = _train_s(cluster, training, trainers)
    whole, left = cluster.generating(0), cluster.generating(trainers)
    during_s = _gather_s(left, training)
    gathered = min(1.0, _ahead(training), train_s / during_s if during_s < math.inf else 0.0)
    gather_s = (1.0 - gathered) * _gather_s(whole, training) + _update_s(whole, training)
    switch_s = _switch_s(training, moving=(whole - left) / whole, whole=whole, left=left)
    return Arrangement(trainers, False, train_s + gather_s + switch_s, train_s, gather_s, switch_s)


def _arrangements(cluster: Cluster, training: Training, trainers: int, stays: bool | None) -> list[Arrangement]:
    found = []
    if stays is not False and cluster.training(trainers) > 0:
        found.append(standing(cluster, training, trainers))
    if stays is not True and trainers:
        found.append(alternating(cluster, training, trainers))
    return found


def _counts(nodes: int, training: Training) -> list[int]:
    most = min(nodes, training.most_nodes or nodes)
    least = min(training.least_nodes, most)
    if most - least < COUNTS:
        counts = range(least, most + 1)
        return [0, *counts] if least else list(counts)
    return sorted({0, *(least + (most - least) * index // (COUNTS - 1) for index in range(COUNTS))})


def _ahead(training: Training) -> float:
    """How many batches may be generated while one is trained."""
    return max(0.0, training.bound_groups / training.groups_per_step - 1.0)


def _train_s(cluster: Cluster, training: Training, trainers: int) -> float:
    capacity = cluster.training(trainers)
    return training.step_node_s / capacity if capacity > 0 else math.inf


def _gather_s(capacity: float, training: Training) -> float:
    """Seconds until a batch is sampled. Half of the nodes are not half as fast where an iteration hardly depends on its batch."""
    if capacity <= 0:
        return math.inf
    costs = training.costs
    batch = min(max(training.running_requests / capacity, 1e-9), costs.slots)
    return training.batch_tokens * (costs.iteration_s + batch * costs.request_s) / (batch * capacity)


def _update_s(capacity: float, training: Training) -> float:
    """A new version: each engine loads it, and computes what runs there again."""
    return training.costs.sync_s + _prefill_s(training.context_tokens, capacity, training)


def _switch_s(training: Training, *, moving: float, whole: float, left: float) -> float:
    """The step waits for the sleep; the wake delays only those that return. Contexts move out to the others, and back."""
    costs, moved = training.costs, training.context_tokens * moving
    out_s = _prefill_s(moved, left, training) if left > 0 else 0.0
    return costs.sleep_s + costs.wake_s * moving + out_s + _prefill_s(moved, whole, training)


def _prefill_s(tokens: float, capacity: float, training: Training) -> float:
    return tokens / (training.costs.prefill_tokens_per_s * capacity) if capacity > 0 else 0.0
