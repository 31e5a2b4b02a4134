"""What is known of training when roles are decided: how far the next batch is, and what things cost here. Data only.

Everything is measured; a mean is that of the last three measurements, and a prior stands until there is one. Capacities are relative: a
node of capacity 2 samples and trains twice as fast as one of capacity 1.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

__all__ = ["SWITCH_PRIOR_S", "Costs", "Recent", "Training"]

SWITCH_PRIOR_S = 10.0
"""What a switch of one node costs until one was measured."""
MEASUREMENTS = 3


class Recent:
    """The mean of the last three measurements; `prior` until there is one."""

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._values: deque[float] = deque(maxlen=MEASUREMENTS)

    def add(self, value: float) -> None:
        """One more measurement; the oldest of four is forgotten."""
        self._values.append(value)

    @property
    def mean(self) -> float:
        """In the unit of the measurements."""
        return sum(self._values) / len(self._values) if self._values else self._prior


class Costs(NamedTuple):
    """What things take on a node of capacity 1.

    `sleep_s`: from a Role that takes a node out of generation until it sleeps; `wake_s`: back until it serves; `sync_s`: loading a version.
    A decode iteration over n requests takes `iteration_s + n * request_s` and gives each one token, for at most `slots` requests. Contexts
    are computed again at `prefill_tokens_per_s`, after a move and after an update.
    """

    sleep_s: float = SWITCH_PRIOR_S
    wake_s: float = SWITCH_PRIOR_S
    sync_s: float = 0.0
    iteration_s: float = 0.0
    request_s: float = 0.001
    slots: int = 256
    prefill_tokens_per_s: float = 10_000.0


class Training(NamedTuple):
    """How far training is. `ready_groups` are complete and wait for a step; at most `bound_groups` are in flight.

    `step_node_s`: node-seconds of one step on nodes of capacity 1; `batch_tokens`: what was sampled for one; `requests_per_group` were
    under way in all engines for each group that was being generated, with `request_context_tokens` in the cache of each. 0 where nothing
    was measured yet. A step runs on at least `least_nodes` and at most `most_nodes` (0: no limit). Standing trainers are changed only for a
    period that is shorter by the share `margin`.
    """

    groups_per_step: int
    ready_groups: int
    bound_groups: int
    is_stepping: bool
    step_node_s: float = 0.0
    batch_tokens: float = 0.0
    requests_per_group: float = 0.0
    request_context_tokens: float = 0.0
    least_nodes: int = 1
    most_nodes: int = 0
    margin: float = 0.05
    costs: Costs = Costs()

    @property
    def running_requests(self) -> float:
        """How many would run if generation were not held up: complete groups that wait for training take the places of others."""
        return self.requests_per_group * max(self.groups_per_step, self.bound_groups - self.groups_per_step)

    @property
    def context_tokens(self) -> float:
        """In the caches of those requests."""
        return self.request_context_tokens * self.running_requests

    @property
    def is_ready(self) -> bool:
        """Whether a batch waits for a step."""
        return self.ready_groups >= self.groups_per_step
