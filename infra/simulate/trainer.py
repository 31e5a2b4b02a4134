"""The trainer: a step as soon as a batch and a gang are there. What it measures is what roles are chosen by.

Invariants: each complete group is in one step; a step runs on nodes whose role is `train` alone; one whose node is lost begins again on the
others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from statistics import fmean
from typing import NamedTuple

from infra.simulate.clock import Clock
from infra.simulate.fleet import Fleet
from infra.simulate.node import SimulatedNode
from infra.simulate.policies import Policy
from infra.simulate.sessions import Group
from infra.simulate.workload import Workload
from workers.scheduler.training import Costs, Recent, Training

__all__ = ["StepRow", "Trainer"]
SAMPLES = 8
"""Of what runs in the engines, in the time in which a batch comes together: while generation is held up, nothing is measured."""


class StepRow(NamedTuple):
    """One step: its end, what it trained and masked, the mean staleness of its sessions, and how long its oldest group took."""

    end_s: float
    trained: float
    masked: float
    staleness: float
    gather_s: float


class Trainer:
    """`stepped` is called after each step, with the number of its groups. `step_node_s` is the work of one."""

    def __init__(
        self, clock: Clock, workload: Workload, policy: Policy, step_node_s: float, fleet: Fleet, stepped: Callable[[int], None]
    ) -> None:
        self.rows: list[StepRow] = []
        self.lost_work_s = 0.0
        self._clock, self._policy, self._fleet, self._stepped = clock, policy, fleet, stepped
        self._step_node_s, self._groups = step_node_s, workload.session.groups_per_step
        self._bound = workload.training.staleness
        self._costs = workload.costs() if policy.is_gated else _free(workload.costs())
        self._ready: deque[Group] = deque()
        self._batch: list[Group] = []
        self._gang: list[SimulatedNode] = []
        self._begun_s, self._number = 0.0, 0
        self._node_s, self._tokens = Recent(0.0), Recent(0.0)
        self._requests, self._context = Recent(0.0), Recent(0.0)
        self._samples: list[tuple[float, float]] = []
        self._taken = 0

    def take(self, group: Group, running_groups: int) -> None:
        """A complete group; so many others are being generated."""
        self._ready.append(group)
        self._taken += 1
        if running_groups and not self._taken % max(1, self._groups // SAMPLES):
            self._sample(running_groups)
        self.consider()

    def consider(self) -> None:
        """Begin a step if everything is there; ask for a gang if only that is missing."""
        if self._batch or len(self._ready) < self._groups or self._fleet.is_gang_coming():
            return
        gang = self._fleet.trainers()
        if not gang:
            self._fleet.look()
            return
        self._batch = [self._ready.popleft() for _ in range(self._groups)]
        self._begin(gang)

    def lost(self, node: SimulatedNode) -> None:
        """A node of the gang is gone."""
        if node not in self._gang:
            return
        self.lost_work_s += (self._clock.now_s - self._begun_s) * len(self._gang)
        gang = [other for other in self._gang if other is not node]
        if gang:
            self._begin(gang)
            return
        self._ready.extendleft(reversed(self._batch))
        self._batch, self._gang = [], []
        self._number += 1
        self.consider()

    def training(self, bound_groups: int) -> Training:
        """As `decide` sees it."""
        measured = self._policy.is_measured
        return Training(
            groups_per_step=self._groups, ready_groups=len(self._ready), bound_groups=bound_groups, is_stepping=bool(self._batch),
            step_node_s=self._node_s.mean if measured else 0.0, batch_tokens=self._tokens.mean, requests_per_group=self._requests.mean,
            request_context_tokens=self._context.mean, costs=self._costs, margin=0.05 if self._policy.is_gated else 0.0,
        )

    def _begin(self, gang: list[SimulatedNode]) -> None:
        self._gang, self._begun_s = gang, self._clock.now_s
        self._number += 1
        for node in gang:
            node.be("training", "train")
        self._clock.after(self._step_node_s / self._capacity(), partial(self._end, self._number))

    def _capacity(self) -> float:
        return len(self._gang) * min(node.capacity for node in self._gang)

    def _end(self, number: int) -> None:
        if number != self._number:
            return
        self._node_s.add((self._clock.now_s - self._begun_s) * self._capacity())
        self._record()
        for node in self._gang:
            node.be("serving" if node.tags == ("train",) else "asleep", "ready")
        groups, self._batch, self._gang = len(self._batch), [], []
        self._fleet.publish(len(self.rows))
        self._stepped(groups)
        self._fleet.look()
        self.consider()

    def _sample(self, running_groups: int) -> None:
        requests = self._fleet.requests()
        self._samples.append((requests / running_groups, self._fleet.context_tokens() / max(1, requests)))

    def _record(self) -> None:
        sessions = [session for group in self._batch for session in group.sessions]
        now, trained, masked, staleness = len(self.rows), 0.0, 0.0, 0
        for session in sessions:
            young = [(version, count) for version, count in session.tokens if now - version <= self._bound]
            kept = sum(count for _, count in young)
            trained += kept
            masked += sum(count for _, count in session.tokens) - kept
            staleness += now - min((version for version, _ in young), default=now)
        self._tokens.add(trained + masked)
        if self._samples:
            self._requests.add(fmean(requests for requests, _ in self._samples))
            self._context.add(fmean(context for _, context in self._samples))
            self._samples.clear()
        gather_s = self._begun_s - min(group.started_s for group in self._batch)
        self.rows.append(StepRow(self._clock.now_s, trained, masked, staleness / len(sessions), gather_s))


def _free(costs: Costs) -> Costs:
    """As if nothing were lost by a change."""
    return costs._replace(sleep_s=0.0, wake_s=0.0, sync_s=0.0, prefill_tokens_per_s=1e12)
