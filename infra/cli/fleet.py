"""The fold of `nodes` and `grants` as an operator sees it: who lives, who owns what, who trains and why, what is paused or drained. Pure.

Invariants: the grants alone say who owns a partition; a node is dead when `DEAD_TICKS` Ticks of the newest scheduler follow its last
status, counted by their numbers, since compaction removes the Ticks themselves; an incarnation that another of its name followed never
comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.grant import Grant, Role
from schemas.node import Control, NodeStatus, Tick
from schemas.record import Record
from streams.codec import Entry
from workers.scheduler.view import DEAD_TICKS

__all__ = ["Assigned", "Fleet", "Granted", "Heard", "Life"]

Life = Literal["alive", "dead", "left", "unknown"]

SILENT_MS = 10_000
"""A scheduler whose last Tick is older does not count time any more: nobody knows then who lives."""


class Heard(NamedTuple):
    """A node's last status, when the broker got it (milliseconds since 1970), and the newest Tick before it."""

    status: NodeStatus
    at_ms: int
    after: Tick | None


class Granted(NamedTuple):
    """The newest Grant of a partition; its offset is the epoch."""

    epoch: int
    at_ms: int
    grant: Grant


class Assigned(NamedTuple):
    """The newest Role of a node, its offset, and since when."""

    offset: int
    at_ms: int
    role: Role

    @property
    def word(self) -> str:
        """What it tells the node to do."""
        return f"asleep on the way to {self.role.role}" if self.role.asleep else self.role.role


class Wished(NamedTuple):
    """An operator's wish that stands, and since when."""

    at_ms: int
    reason: str


@dataclass
class Fleet:
    """What both topics say so far. `partitions` is the number of partitions of `sessions`."""

    partitions: int
    nodes: dict[str, Heard] = field(default_factory=dict)
    grants: dict[int, Granted] = field(default_factory=dict)
    roles: dict[str, Assigned] = field(default_factory=dict)
    paused: Wished | None = None
    draining: dict[str, Wished] = field(default_factory=dict)
    tick: Tick | None = None
    tick_at_ms: int = 0
    _gone: set[str] = field(default_factory=set)

    def apply(self, entry: Entry[Record]) -> None:
        """Take in the next record of either topic."""
        match entry.record:
            case NodeStatus() as status:
                self._report(status, entry.timestamp_ms)
            case Tick() as tick:
                self.tick, self.tick_at_ms = tick, entry.timestamp_ms
            case Control() as control:
                self._control(control, entry.timestamp_ms)
            case Grant() as grant:
                self.grants[grant.partition] = Granted(entry.offset, entry.timestamp_ms, grant)
            case Role() as role:
                self.roles[role.node] = Assigned(entry.offset, entry.timestamp_ms, role)
            case _:
                pass

    def owners(self) -> dict[int, str]:
        """Partition → the node that owns it; those without an owner are absent."""
        return {partition: granted.grant.node for partition, granted in sorted(self.grants.items()) if granted.grant.node}

    def owned_by(self, node: str) -> list[int]:
        """The partitions that the grants give to a node."""
        return [partition for partition, owner in self.owners().items() if owner == node]

    def life(self, node: str, now_ms: int) -> Life:
        """Whether a node lives, as the scheduler counts it."""
        if self.nodes[node].status.state == "left":
            return "left"
        if self.scheduler_is_silent(now_ms):
            return "unknown"
        return "dead" if self._ticks_since(self.nodes[node]) >= DEAD_TICKS else "alive"

    def scheduler_is_silent(self, now_ms: int) -> bool:
        """No scheduler counts time now."""
        return self.tick is None or now_ms - self.tick_at_ms > SILENT_MS

    def _ticks_since(self, heard: Heard) -> int:
        if self.tick is None:
            return 0
        if heard.after is None or heard.after.scheduler != self.tick.scheduler:
            return self.tick.number
        return self.tick.number - heard.after.number

    def _report(self, status: NodeStatus, at_ms: int) -> None:
        if status.incarnation in self._gone:
            return
        before = self.nodes.get(status.node)
        if before is not None and before.status.incarnation != status.incarnation:
            self._gone.add(before.status.incarnation)
        self.nodes[status.node] = Heard(status, at_ms, self.tick)

    def _control(self, control: Control, at_ms: int) -> None:
        wished = Wished(at_ms, control.reason)
        match control.command:
            case "pause":
                self.paused = wished
            case "resume":
                self.paused = None
            case "drain":
                self.draining[control.node] = wished
            case "undrain":
                self.draining.pop(control.node, None)
