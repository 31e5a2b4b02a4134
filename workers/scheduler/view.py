"""What a decision is made from: nodes, grants, an operator's wishes. A snapshot; data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.grant import Grant, Role
from schemas.node import State, Tag
from workers.scheduler.training import Training

__all__ = ["DEAD_TICKS", "HeldGrant", "HeldRole", "NodeView", "View"]

DEAD_TICKS = 4
NO_PARTS = 1 << 62
"""`parts_seen` of a node on which no trainer steps: nothing waits for one."""


class NodeView(NamedTuple):
    """The last status of a node's newest incarnation. `ticks` of this scheduler followed it.

    `is_heard`: the status came while this scheduler ran; one that was only found in the log may be a dead node's last word.
    `context_tokens` are the tokens in the caches of its running requests: what must be computed again where they move. `parts_seen` is the
    least `grants_seen` of the living trainers that step on this node, too.
    """

    node: str
    incarnation: str
    tags: tuple[Tag, ...]
    state: State
    capacity: float
    ticks: int
    is_heard: bool
    grants_seen: int
    partitions: frozenset[int]
    context_tokens: int = 0
    parts_seen: int = NO_PARTS


class HeldGrant(NamedTuple):
    """The last Grant record of a partition, and its offset."""

    offset: int
    grant: Grant


class HeldRole(NamedTuple):
    """The last Role record of a node, its offset, and how many own Ticks of this scheduler followed it."""

    offset: int
    role: Role
    ticks: int = 0


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot. `nodes` by name, `grants` by partition (absent: never granted), `partitions` is their number.

    `roles` by node (absent: it never had one, and generates). Without `training` no role changes.

    `left` are incarnations whose last word was that they left, also where another one of the same name followed.
    """

    partitions: int
    nodes: Mapping[str, NodeView]
    grants: Mapping[int, HeldGrant]
    is_paused: bool = False
    draining: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    dead_ticks: int = DEAD_TICKS
    roles: Mapping[str, HeldRole] = field(default_factory=dict)
    training: Training | None = None

    def living(self) -> dict[str, NodeView]:
        """The nodes that are neither dead nor gone, by name."""
        return {name: node for name, node in self.nodes.items() if node.ticks < self.dead_ticks and node.state != "left"}
