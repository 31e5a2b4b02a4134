"""The nodes tagged both ways, by what they do now and whether they said so. Pure.

Invariant: a node counts as asleep only by a status that shows no partition and was made after it had read its last Role, and when every
living trainer that steps on it has seen that Role, too, with no step that began before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from workers.scheduler.period import Cluster
from workers.scheduler.view import HeldRole, NodeView, View

__all__ = ["Crew"]


@dataclass(frozen=True)
class Crew:
    """Of a view. Names are those of living nodes that alternate; those to be drained are none of `trainers` and `generators`."""

    view: View

    @cached_property
    def living(self) -> Mapping[str, NodeView]:
        """All nodes that live, those of one tag, too."""
        return self.view.living()

    @cached_property
    def nodes(self) -> Mapping[str, NodeView]:
        """All of them, by name."""
        return {name: node for name, node in self.living.items() if "rollout" in node.tags and "train" in node.tags}

    @cached_property
    def trainers(self) -> list[str]:
        """Whose last Role is `train`."""
        return [name for name in self.nodes if self.role(name) == "train" and not self.is_drained(name)]

    @cached_property
    def generators(self) -> list[str]:
        """Who serves, or will in a moment."""
        awake = [name for name, node in self.nodes.items() if node.state in ("serving", "loading")]
        return [name for name in awake if self.role(name) == "rollout" and not self.is_drained(name)]

    @cached_property
    def asleep(self) -> dict[str, HeldRole]:
        """Who is on the way from one role to the other."""
        return {name: self.view.roles[name] for name in self.nodes if self.role(name) == "asleep"}

    @cached_property
    def waking(self) -> dict[str, HeldRole]:
        """Who was told to generate, and has not said yet that its engine is awake."""
        told = {name: self.view.roles[name] for name in self.nodes.keys() & self.view.roles.keys() if self.role(name) == "rollout"}
        return {name: held for name, held in told.items() if not self._has_seen(name) or self.nodes[name].state == "asleep"}

    def role(self, name: str) -> str:
        """What its last Role says: `rollout`, `train`, or `asleep` on the way to either."""
        held = self.view.roles.get(name)
        if held is None:
            return "rollout"
        return "asleep" if held.role.asleep else held.role.role

    def is_drained(self, name: str) -> bool:
        """Whether an operator wants it empty."""
        return name in self.view.draining

    def sleeps(self, name: str) -> bool:
        """Whether it has said that it let go of everything, and sleeps, since it was told to."""
        node = self.nodes[name]
        return node.state == "asleep" and not node.partitions and self._has_seen(name)

    def cluster(self, order: list[str]) -> Cluster:
        """Capacities, with the alternating nodes in this order."""
        single = [node for name, node in self.living.items() if name not in self.nodes and not self.is_drained(name)]
        others = [node for node in single if node.state != "asleep"]
        return Cluster(
            [self.nodes[name].capacity for name in order],
            rollout=sum(node.capacity for node in others if "rollout" in node.tags),
            train=sum(node.capacity for node in others if "train" in node.tags),
        )

    def _has_seen(self, name: str) -> bool:
        node = self.nodes[name]
        return min(node.grants_seen, node.parts_seen) > self.view.roles[name].offset
