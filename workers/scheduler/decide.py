"""Who does what, and who generates for which partition: a pure function of a snapshot, used unchanged by the service and by simulations.

Invariants:
- never two owners: a partition is granted only where its last holder is dead, has let go (its status shows `grants_seen` beyond the revoke
  and not the partition), or is the same incarnation;
- while a serving node lives, every partition comes to an owner: at once where nobody holds it, else when its holder lets go or dies;
- the shares of serving nodes differ from their proportion of capacity by less than one partition, once every move is done;
- a view in which all this holds needs no change, and no change is made that evenness does not need;
- a node that trains or sleeps by its Role holds nothing: its partitions are revoked in the transaction that puts it to sleep.

Roles are decided first, in `workers.scheduler.roles`; where no node alternates there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from schemas.grant import Grant, Role
from schemas.session import Cause
from workers.scheduler.roles import decide_roles
from workers.scheduler.shares import shares_of
from workers.scheduler.view import DEAD_TICKS, HeldGrant, NodeView, View

__all__ = ["DEAD_TICKS", "Change", "decide"]

Change = Grant | Role


def decide(view: View) -> list[Change]:
    """The records to be written now, together. Empty in a steady state."""
    if not view.nodes:
        return []
    roles = decide_roles(view)
    board = _Board(view, {name: held.role for name, held in view.roles.items()} | {role.node: role for role in roles})
    board.place()
    return [*roles, *board.revokes(), *board.grants()]


class _Free(NamedTuple):
    """A partition that may be granted to anybody: why, in one word and in one sentence."""

    cause: Cause
    why: str


@dataclass
class _Board:
    """The partitions sorted by what may be done with them. `held` and `leaving` are by node, `free` by partition."""

    view: View
    roles: Mapping[str, Role]
    held: dict[str, list[int]] = field(default_factory=dict)
    leaving: dict[str, list[int]] = field(default_factory=dict)
    free: dict[int, _Free] = field(default_factory=dict)

    def place(self) -> None:
        """Put every partition where it belongs."""
        last_grant, alive = self.view.grants.get, {incarnation: list[int]() for incarnation in self._by_incarnation}
        for partition in range(self.view.partitions):
            last = last_grant(partition)
            if last is None:
                self.free[partition] = _Free("joined", "it had no owner")
            elif (holding := alive.get(last.grant.incarnation)) is not None:
                holding.append(partition)
            elif last.grant.node:
                self.free[partition] = self._left_by(last.grant.node, last.grant.incarnation)
            else:
                self._place_revoked(partition, last)
        self.held = {self._by_incarnation[incarnation].node: partitions for incarnation, partitions in alive.items() if partitions}

    def revokes(self) -> Iterator[Grant]:
        """Taken from nodes that may not hold anything, and from those above their share."""
        for name, partitions in self.held.items():
            node = self._living[name]
            reason = self._forbids(node)
            if reason is not None:
                yield from (_revoke(node, partition, reason) for partition in partitions)
            elif len(partitions) > self._shares.get(name, self.view.partitions) and not self._is_unsure:
                yield from self._surplus(node, partitions)

    def grants(self) -> Iterator[Grant]:
        """Given to nodes below their share: first what they are just giving up, then what is free."""
        wants = {name: share - len(self.held.get(name, ())) for name, share in self._shares.items()}
        for name in wants:
            taken_back = self.leaving.get(name, [])[: max(wants[name], 0)]
            wants[name] -= len(taken_back)
            yield from (self._grant(name, partition, _Free("moved", "it was about to give it up")) for partition in taken_back)
        takers = (name for name, want in wants.items() for _ in range(want))
        yield from (self._grant(name, partition, free) for (partition, free), name in zip(self.free.items(), takers, strict=False))

    def _place_revoked(self, partition: int, last: HeldGrant) -> None:
        holder = self._by_incarnation.get(last.grant.holder)
        if holder is None:
            self.free[partition] = self._left_by(self._incarnation_names.get(last.grant.holder, ""), last.grant.holder)
        elif holder.grants_seen > last.offset and partition not in holder.partitions:
            self.free[partition] = _Free("moved", f"{holder.node} gave it up")
        else:
            self.leaving.setdefault(holder.node, []).append(partition)

    def _left_by(self, name: str, incarnation: str) -> _Free:
        node = self.view.nodes.get(name)
        if incarnation in self.view.left:
            return _Free("moved", f"incarnation {incarnation} of {name or 'its holder'} left")
        if node is None or node.incarnation != incarnation:
            return _Free("dead", f"incarnation {incarnation} of {name or 'its holder'} is gone")
        if node.state == "left":
            return _Free("moved", f"{name} left")
        return _Free("dead", f"{name} is dead: {node.ticks} ticks without a status")

    def _surplus(self, node: NodeView, partitions: list[int]) -> Iterator[Grant]:
        share = self._shares[node.node]
        youngest_first = sorted(partitions, key=lambda partition: -self.view.grants[partition].offset)
        for partition in youngest_first[: len(partitions) - share]:
            yield _revoke(node, partition, f"{node.node} has {len(partitions)} partitions, its share is {self._share_text(node)}")

    def _forbids(self, node: NodeView) -> str | None:
        if self.view.is_paused:
            return "paused"
        if node.node in self.view.draining:
            return f"{node.node} is to be drained"
        if "rollout" not in node.tags or node.state not in ("serving", "loading"):
            return f"{node.node} is {node.state}, tagged {', '.join(node.tags) or 'nothing'}"
        role = self.roles.get(node.node)
        if role is not None and "train" in node.tags and (role.asleep or role.role == "train"):
            return f"{node.node} is to {'sleep' if role.role == 'rollout' else 'train'}: {role.reason}"
        return None

    def _grant(self, name: str, partition: int, free: _Free) -> Grant:
        node = self._living[name]
        reason = f"{free.why}; {name} has {len(self.held.get(name, ()))} partitions, its share is {self._share_text(node)}"
        return Grant(partition=partition, node=name, incarnation=node.incarnation, cause=free.cause, reason=reason)

    def _share_text(self, node: NodeView) -> str:
        return f"{self._shares[node.node]} of {self.view.partitions}, by capacity {node.capacity:g} of {self._capacity:g}"

    @cached_property
    def _living(self) -> dict[str, NodeView]:
        return self.view.living()

    @cached_property
    def _by_incarnation(self) -> dict[str, NodeView]:
        return {node.incarnation: node for node in self._living.values()}

    @cached_property
    def _incarnation_names(self) -> dict[str, str]:
        return {node.incarnation: name for name, node in self.view.nodes.items()}

    @cached_property
    def _serving(self) -> dict[str, NodeView]:
        """Nodes that may be granted something. One that loads keeps what it has, and gets nothing new."""
        return {name: node for name, node in self._living.items() if node.is_heard and node.state == "serving" and not self._forbids(node)}

    @cached_property
    def _is_unsure(self) -> bool:
        """A node may live or not: nothing moves on the strength of what may be its last word."""
        return any(not node.is_heard for node in self._living.values())

    @cached_property
    def _shares(self) -> dict[str, int]:
        """Serving node → its share of what other nodes do not keep."""
        kept = sum(len(partitions) for name, partitions in self.held.items() if self._keeps(name))
        holding = {name: len(self.held.get(name, ())) for name in self._serving}
        capacities = {name: node.capacity for name, node in self._serving.items()}
        return shares_of(self.view.partitions - kept, capacities, holding)

    @cached_property
    def _capacity(self) -> float:
        return sum(node.capacity for node in self._serving.values())

    def _keeps(self, name: str) -> bool:
        return name not in self._serving and self._forbids(self._living[name]) is None


def _revoke(node: NodeView, partition: int, reason: str) -> Grant:
    return Grant(partition=partition, holder=node.incarnation, cause="moved", reason=reason)
