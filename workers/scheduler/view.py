"""What a decision is made from: nodes, grants, an operator's wishes. A snapshot; data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from schemas.grant import Grant
from schemas.node import State, Tag

__all__ = ["DEAD_TICKS", "HeldGrant", "NodeView", "View"]

DEAD_TICKS = 4


class NodeView(NamedTuple):
    """The last status of a node's newest incarnation. `ticks` of this scheduler followed it.

    `is_heard`: the status came while this scheduler ran; one that was only found in the log may be a dead node's last word.
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


class HeldGrant(NamedTuple):
    """The last Grant record of a partition, and its offset."""

    offset: int
    grant: Grant


@dataclass(frozen=True, slots=True)
class View:
    """A snapshot. `nodes` by name, `grants` by partition (absent: never granted), `partitions` is their number.

    `left` are incarnations whose last word was that they left, also where another one of the same name followed.
    """

    partitions: int
    nodes: Mapping[str, NodeView]
    grants: Mapping[int, HeldGrant]
    is_paused: bool = False
    draining: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    dead_ticks: int = DEAD_TICKS
