"""The fold of `nodes` as one scheduler sees it: who reported what, how many of its own Ticks ago, and what the operator wishes. Pure.

Invariants: time passes only by own Ticks that were read back, so a slow broker kills nobody; an incarnation that another one of the same
name followed never comes back, whatever it still reports, but that it left is remembered; of two schedulers the one whose first Tick stands
later in the log goes on, and one that is resent still later changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from schemas.grant import Role
from schemas.node import Control, NodeStatus, Tick
from schemas.record import Record
from workers.scheduler.training import Training
from workers.scheduler.view import NO_PARTS, HeldGrant, HeldRole, NodeView, View

__all__ = ["Roster"]


LEFT_LIMIT = 1024
"""How many incarnations are remembered as left: far more than can be followed by another one before their partitions are granted anew."""


class _Seen(NamedTuple):
    status: NodeStatus
    at_tick: int
    is_heard: bool


class Roster:
    """Made with the scheduler's own random name. `ticks` counts its own Ticks read back."""

    def __init__(self, scheduler: str, dead_ticks: int) -> None:
        self._scheduler, self._dead_ticks = scheduler, dead_ticks
        self._nodes: dict[str, _Seen] = {}
        self._hosting: set[str] = set()
        self._gone: dict[str, set[str]] = {}
        self._left: dict[str, None] = {}  # the longest ago first
        self._roles: dict[str, HeldRole] = {}  # with the number of the own tick at which it came
        self._schedulers: set[str] = set()
        self._draining: set[str] = set()
        self._is_paused = False
        self.ticks = 0
        self.successor: str | None = None

    def apply(self, record: Record, *, is_heard: bool) -> None:
        """Take in the next record. `is_heard`: it was written while this scheduler ran, not found in the log at its start."""
        match record:
            case NodeStatus():
                self._report(record, is_heard)
            case Tick():
                self._tick(record)
            case Control():
                self._control(record)
            case _:
                pass

    def hold(self, offset: int, role: Role) -> None:
        """Take in the next Role of `grants`."""
        self._roles[role.node] = HeldRole(offset, role, self.ticks)

    @property
    def hosting(self) -> list[NodeStatus]:
        """The last statuses of trainers that step on nodes which generate, too, living or not."""
        return [self._nodes[name].status for name in sorted(self._hosting)]

    def view(self, partitions: int, grants: Mapping[int, HeldGrant], training: Training | None = None) -> View:
        """The snapshot now."""
        parts = self._parts_seen()
        return View(
            partitions=partitions, grants=grants,
            nodes={name: self._node(seen, parts.get(name, NO_PARTS)) for name, seen in self._nodes.items()},
            is_paused=self._is_paused, draining=frozenset(self._draining), left=frozenset(self._left), dead_ticks=self._dead_ticks,
            roles={name: held._replace(ticks=self.ticks - held.ticks) for name, held in self._roles.items()}, training=training,
        )

    def _report(self, status: NodeStatus, is_heard: bool) -> None:
        if status.state == "left":
            self._remember_left(status.incarnation)
        before, gone = self._nodes.get(status.node), self._gone.setdefault(status.node, set())
        if status.incarnation in gone:
            return
        if before is not None and before.status.incarnation != status.incarnation:
            gone.add(before.status.incarnation)
        self._nodes[status.node] = _Seen(status, self.ticks, is_heard)
        (self._hosting.add if status.hosts else self._hosting.discard)(status.node)

    def _parts_seen(self) -> dict[str, int]:
        """Node → how far `grants` was seen by the last of the trainers that live and step on it. One that is gone is no part of it."""
        found: dict[str, int] = {}
        for seen in (self._nodes[name] for name in self._hosting):
            if seen.status.state != "left" and self.ticks - seen.at_tick < self._dead_ticks:
                for host in seen.status.hosts:
                    found[host] = min(found.get(host, NO_PARTS), seen.status.grants_seen)
        return found

    def _remember_left(self, incarnation: str) -> None:
        self._left[incarnation] = None
        if len(self._left) > LEFT_LIMIT:
            del self._left[next(iter(self._left))]

    def _tick(self, tick: Tick) -> None:
        if tick.scheduler == self._scheduler:
            self.ticks += 1
        elif tick.number == 1 and self.ticks and tick.scheduler not in self._schedulers:
            self.successor = tick.scheduler
        self._schedulers.add(tick.scheduler)

    def _control(self, control: Control) -> None:
        match control.command:
            case "pause":
                self._is_paused = True
            case "resume":
                self._is_paused = False
            case "drain":
                self._draining.add(control.node)
            case "undrain":
                self._draining.discard(control.node)

    def _node(self, seen: _Seen, parts_seen: int) -> NodeView:
        status = seen.status
        return NodeView(
            node=status.node, incarnation=status.incarnation, tags=tuple(status.tags), state=status.state, capacity=status.capacity,
            ticks=self.ticks - seen.at_tick, is_heard=seen.is_heard, grants_seen=status.grants_seen,
            partitions=frozenset(status.partitions), parts_seen=parts_seen,
        )
