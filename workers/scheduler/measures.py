"""What roles are decided by: how far training is, as its trainers say, and what things cost, by the scheduler's own clock.

Invariants:
- without a trainer that steps on nodes which generate, too, or before its run began, nothing is known and nothing is decided;
- a trainer that died or left has no batch and no step: its nodes return to generation;
- of a cost only the last three measurements count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from schemas.grant import Role
from schemas.node import NodeStatus
from schemas.record import Record
from schemas.training import Run, Step
from workers.scheduler.crew import Crew
from workers.scheduler.settings import SchedulerSettings
from workers.scheduler.training import SWITCH_PRIOR_S, Costs, Recent, Training
from workers.scheduler.view import View

__all__ = ["Measures"]


@dataclass
class _Switch:
    """A Role that was written at `since_s` and is not acknowledged yet."""

    role: Role
    since_s: float


@dataclass
class Measures:
    """Fed with all that a scheduler reads and writes. Times are seconds of one steady clock."""

    settings: SchedulerSettings
    _groups_per_step: int = 0
    _step_node_s: Recent = field(default_factory=lambda: Recent(0.0))
    _batch_tokens: Recent = field(default_factory=lambda: Recent(0.0))
    _running: Recent = field(default_factory=lambda: Recent(0.0))
    _sleep_s: Recent = field(default_factory=lambda: Recent(SWITCH_PRIOR_S))
    _wake_s: Recent = field(default_factory=lambda: Recent(SWITCH_PRIOR_S))
    _token_s: Recent = field(default_factory=lambda: Recent(Costs().request_s))
    _most_running: int = 0
    _said: dict[str, tuple[float, NodeStatus]] = field(default_factory=dict)
    _switches: dict[str, _Switch] = field(default_factory=dict)

    def hear(self, record: Record, now_s: float) -> None:
        """The next record of `nodes`."""
        if not isinstance(record, NodeStatus) or "rollout" not in record.tags:
            return
        before = self._said.get(record.node)
        self._said[record.node] = now_s, record
        if before is not None and before[1].incarnation == record.incarnation and min(before[1].running, record.running) > 0:
            tokens, passed_s = record.tokens - before[1].tokens, now_s - before[0]
            if tokens > 0 and passed_s >= self.settings.tick_s / 2:
                self._token_s.add(passed_s * record.capacity / tokens)
        self._most_running = max(self._most_running, sum(status.running for _, status in self._said.values()))

    def trained(self, record: Record, capacity: float) -> None:
        """The next record of `training`; its step ran on nodes of this capacity, all in all."""
        if isinstance(record, Run):
            self._groups_per_step = _groups_per_step(record.settings)
        elif isinstance(record, Step):
            took_s = (record.metrics.get("update_ms", 0.0) + record.metrics.get("publish_ms", 0.0)) / 1e3
            self._step_node_s.add(took_s * max(capacity, 1.0))
            self._batch_tokens.add(float(record.trained_tokens))
            self._running.add(float(self._most_running))
            self._most_running = 0

    def wrote(self, role: Role, now_s: float) -> None:
        """A Role was written."""
        self._switches[role.node] = _Switch(role, now_s)

    def look(self, view: View, now_s: float) -> None:
        """Which switches are over by now."""
        crew = Crew(view)
        for name, switch in list(self._switches.items()):
            if name not in crew.nodes:
                del self._switches[name]
            elif _is_over(crew, name, switch.role):
                del self._switches[name]
                self._add(switch.role, now_s - switch.since_s)

    def training(self, trainers: Iterable[NodeStatus], living: Mapping[str, object]) -> Training | None:
        """All of it. `trainers` are the last statuses of those with hosts; `living` are the names of nodes that live."""
        known, settings, groups = list(trainers), self.settings, self._groups_per_step
        if not known or not groups:
            return None
        at_work, bound_groups = [status for status in known if status.node in living], (settings.staleness_bound + 1) * groups
        return Training(
            groups_per_step=groups, ready_groups=max((status.ready_groups for status in at_work), default=0),
            bound_groups=bound_groups, is_stepping=any(status.state == "training" for status in at_work),
            step_node_s=self._step_node_s.mean, batch_tokens=self._batch_tokens.mean,
            requests_per_group=self._running.mean / bound_groups,
            least_nodes=settings.least_train_nodes, most_nodes=settings.most_train_nodes, margin=settings.margin,
            costs=Costs(sleep_s=self._sleep_s.mean, wake_s=self._wake_s.mean, request_s=self._token_s.mean),
        )  # fmt: skip

    def _add(self, role: Role, took_s: float) -> None:
        """Two of the four Roles cost something: into sleep and out of it. The others wait for a gang, or for the end of a step."""
        if role.asleep and role.role == "train":
            self._sleep_s.add(took_s)
        elif role.role == "rollout" and not role.asleep:
            self._wake_s.add(took_s)


def _is_over(crew: Crew, name: str, role: Role) -> bool:
    if role.asleep:
        return crew.sleeps(name)
    return role.role == "train" or (name not in crew.waking and crew.nodes[name].state == "serving")


def _groups_per_step(settings: Mapping[str, Any]) -> int:
    feed = settings.get("feed")
    return int(feed.get("groups_per_step", 0)) if isinstance(feed, Mapping) else 0
