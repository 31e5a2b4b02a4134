"""One run: a workload under a policy with a seed, from nothing to its last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from infra.simulate.clock import Clock
from infra.simulate.fleet import Fleet
from infra.simulate.node import SimulatedNode, Stretch
from infra.simulate.policies import Policy
from infra.simulate.rollouts import Rollouts
from infra.simulate.sessions import Group, Session
from infra.simulate.trainer import StepRow, Trainer
from infra.simulate.workload import Workload
from workers.scheduler.training import Training

__all__ = ["Counts", "Run", "World"]

LIMIT_S = 1e7


class Counts(NamedTuple):
    """Sums over all nodes since the start.

    Seconds by mode, seconds with a request, tokens computed or sampled again, changed roles, node-seconds of steps that were broken off.
    """

    seconds: Mapping[str, float]
    busy_s: float
    reprefilled: float
    regenerated: float
    switches: int
    lost_work_s: float


@dataclass(frozen=True)
class Run:
    """What is left of a run. `opened` are the counts when the measured steps began, at `opened_s`; `closed` those at the end."""

    rows: list[StepRow]
    opened_s: float
    opened: Counts
    closed: Counts
    most_in_flight: int
    stretches: Mapping[str, list[Stretch]] = field(default_factory=dict)


class World:
    """Everything together. Not for use after `run`."""

    def __init__(self, workload: Workload, policy: Policy, seed: int) -> None:
        self.clock = Clock()
        self._workload = workload
        step_node_s = workload.training.step_s * sum(workload.cluster.capacity(number) for number in range(workload.cluster.nodes))
        self.fleet = Fleet(self.clock, workload, policy, seed, self)
        self.trainer = Trainer(self.clock, workload, policy, step_node_s, self.fleet, self._stepped)
        self.rollouts = Rollouts(self.clock, workload, policy, seed, self.fleet, self._completed)
        self._opened: tuple[float, Counts] | None = None
        self.fleet.look()

    def run(self) -> Run:
        """Until the last step has ended.

        :raises NoProgress: it does not come.
        """
        wanted = self._workload.warm_up + self._workload.steps
        self.clock.run(lambda: len(self.trainer.rows) >= wanted, LIMIT_S)
        opened_s, opened = self._opened or (0.0, self._counts())
        closed = self._counts()
        stretches = {name: node.stretches for name, node in self.fleet.nodes.items()}
        return Run(self.trainer.rows, opened_s, opened, closed, self.rollouts.most_in_flight, stretches)

    # What the fleet tells

    def request_ended(self, session: Session) -> None:
        """Its request is complete."""
        self.rollouts.request_ended(session)

    def fleet_changed(self) -> None:
        """Roles or owners changed."""
        self.rollouts.fill()
        self.trainer.consider()

    def node_lost(self, node: SimulatedNode) -> None:
        """A step may have lost it."""
        self.trainer.lost(node)

    def training(self) -> Training:
        """How far training is."""
        return self.trainer.training(self.rollouts.bound_groups)

    def _stepped(self, groups: int) -> None:
        if len(self.trainer.rows) == self._workload.warm_up:
            self._opened = (self.clock.now_s, self._counts())
        self.rollouts.trained(groups)

    def _completed(self, group: Group) -> None:
        self.trainer.take(group, self.rollouts.running)

    def _counts(self) -> Counts:
        seconds: dict[str, float] = {}
        busy_s = reprefilled = 0.0
        for node in self.fleet.nodes.values():
            node.book()
            node.engine.context_tokens()  # brings its own count up to now
            for mode, value in node.seconds.items():
                seconds[mode] = seconds.get(mode, 0.0) + value
            busy_s += node.work.busy_s
            reprefilled += node.work.reprefilled
        return Counts(seconds, busy_s, reprefilled, self.fleet.regenerated, self.fleet.switches, self.trainer.lost_work_s)
