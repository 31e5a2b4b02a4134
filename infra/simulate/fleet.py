"""The nodes, and who owns which partition: `decide` says, and the nodes follow with a delay.

Invariants: a request runs on the owner of its session's partition, or waits; nothing but `decide` changes an owner or a role.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Protocol

from infra.simulate.clock import Clock
from infra.simulate.node import Mode, SimulatedNode
from infra.simulate.policies import Policy
from infra.simulate.sessions import Session
from infra.simulate.workload import Workload
from schemas.grant import Grant, Role
from schemas.node import State, Tag
from workers.scheduler.decide import Change, decide
from workers.scheduler.training import Training
from workers.scheduler.view import DEAD_TICKS, HeldGrant, HeldRole, View

__all__ = ["Fleet", "Watcher"]

HOP_S = 0.05
"""From a record's writer to its readers, and from a status to a decision."""
TICK_S = 1.0
FLUSH_S = 0.5
"""Tokens that are younger than this are not in the log yet."""


class Watcher(Protocol):
    """What the fleet tells, and asks."""

    def request_ended(self, session: Session) -> None:
        """Its request is complete."""

    def fleet_changed(self) -> None:
        """Roles or owners changed."""

    def node_lost(self, node: SimulatedNode) -> None:
        """It is gone, and does not train any more."""

    def training(self) -> Training:
        """How far training is."""


class Fleet:
    """All nodes. `regenerated` tokens were lost with a node and sampled again; `switches` counts changed roles."""

    def __init__(self, clock: Clock, workload: Workload, policy: Policy, seed: int, watcher: Watcher) -> None:
        self.regenerated, self.switches, self.version = 0.0, 0, 0
        self._clock, self._workload, self._policy, self._watcher = clock, workload, policy, watcher
        self.nodes = {node.name: node for node in map(self._make_node, range(workload.cluster.nodes))}
        self._by_incarnation = {node.incarnation: node for node in self.nodes.values()}
        partitions = workload.cluster.partitions
        self._grants: dict[int, HeldGrant] = {}
        self._roles: dict[str, tuple[int, Role, float]] = {}
        self._owners: list[SimulatedNode | None] = [None] * partitions
        self._requests: list[dict[Session, None]] = [{} for _ in range(partitions)]
        self._open = [0] * partitions
        self._written = self._seen = 0
        self._is_due = False
        self._plan_losses(seed)

    # Sessions

    def place(self, sessions: Sequence[Session]) -> bool:
        """Give a group a partition of the node with the fewest sessions. False: nobody owns one."""
        owners = [node for node in self.nodes.values() if node.held]
        if not owners:
            return False
        node = min(owners, key=lambda found: found.assigned / found.capacity)
        partition = min(node.held, key=lambda held: (self._open[held], held))
        for session in sessions:
            session.partition = partition
        self._open[partition] += len(sessions)
        node.assigned += len(sessions)
        return True

    def submit(self, session: Session) -> None:
        """A request of a session, which waits where nobody owns its partition."""
        self._requests[session.partition][session] = None
        owner = self._owners[session.partition]
        if owner is not None:
            owner.engine.admit(session)

    def close(self, session: Session) -> None:
        """It has ended."""
        self._open[session.partition] -= 1
        owner = self._owners[session.partition]
        if owner is not None:
            owner.assigned -= 1

    def requests(self) -> int:
        """Under way or waiting."""
        return sum(node.engine.load for node in self.nodes.values())

    def context_tokens(self) -> float:
        """In the caches of all engines, for running requests."""
        return sum(node.engine.context_tokens() for node in self.nodes.values())

    # Training

    def publish(self, version: int) -> None:
        """A new version: engines that are awake load it, each when the policy says so."""
        self.version = version
        for node in self.nodes.values():
            if node.mode == "rollout":
                node.engine.update(version, is_partial=self._policy.is_partial)

    def trainers(self) -> list[SimulatedNode]:
        """Nodes that a step may use now."""
        return [node for node in self.nodes.values() if node.may_train]

    def is_gang_coming(self) -> bool:
        """Whether somebody is on the way to train."""
        held = (self._roles.get(name) for name, node in self.nodes.items() if node.is_alive)
        return any(last is not None and last[1].asleep and last[1].role == "train" for last in held)

    # Decisions

    def look(self) -> None:
        """Something changed: decide, a moment later."""
        if not self._is_due:
            self._is_due = True
            self._clock.after(HOP_S, self._decide)

    def _decide(self) -> None:
        self._is_due = False
        changes = decide(self._view())
        for change in changes:
            if isinstance(change, Grant):
                self._grants[change.partition] = HeldGrant(self._written, change)
            else:
                self._roles[change.node] = (self._written, change, self._clock.now_s)
                self.switches += not change.asleep
            self._written += 1
        if changes:
            self._clock.after(HOP_S, partial(self._deliver, changes, self._written))

    def _view(self) -> View:
        now_s = self._clock.now_s
        return View(
            partitions=len(self._owners), nodes={name: node.view(self._seen, TICK_S) for name, node in self.nodes.items()},
            grants=self._grants, training=self._watcher.training(),
            roles={name: HeldRole(offset, role, int((now_s - at_s) / TICK_S)) for name, (offset, role, at_s) in self._roles.items()},
        )

    def _deliver(self, changes: Sequence[Change], end: int) -> None:
        self._seen = end
        for change in changes:
            if isinstance(change, Role):
                self._turn(self.nodes[change.node], change)
            elif change.node:
                self._take(self._by_incarnation[change.incarnation], change)
            else:
                self._release(self._by_incarnation[change.holder], change.partition)
        self._watcher.fleet_changed()
        self.look()

    def _take(self, node: SimulatedNode, grant: Grant) -> None:
        partition = grant.partition
        if not node.is_alive or node.incarnation != grant.incarnation:
            return
        self._owners[partition] = node
        node.held.add(partition)
        node.assigned += self._open[partition]
        for session in self._requests[partition]:
            node.engine.admit(session)

    def _release(self, node: SimulatedNode, partition: int) -> None:
        if partition not in node.held:
            return
        for session in self._requests[partition]:
            node.engine.drop(session)
        self._forget(node, partition)

    def _forget(self, node: SimulatedNode, partition: int) -> None:
        self._owners[partition] = None
        node.held.discard(partition)
        node.assigned -= self._open[partition]

    def _turn(self, node: SimulatedNode, role: Role) -> None:
        if not node.is_alive:
            return
        node.role = role
        if role.asleep and role.role == "train":
            node.engine.abort()
            for partition in [*node.held]:
                self._forget(node, partition)
            self._switch(node, "asleep", "ready", node.costs.sleep_s)
        elif role.role == "rollout" and not role.asleep:
            self._switch(node, "serving", "rollout", node.costs.wake_s)

    def _switch(self, node: SimulatedNode, state: State, mode: Mode, seconds: float) -> None:
        node.be("loading" if state == "asleep" else "asleep", "switch")
        self._clock.after(seconds, partial(self._arrive, node, node.incarnation, state, mode))

    def _arrive(self, node: SimulatedNode, incarnation: str, state: State, mode: Mode) -> None:
        if node.incarnation != incarnation or not node.is_alive:
            return
        node.be(state, mode)
        if mode == "rollout" and node.engine.version < self.version:
            node.engine.update(self.version, is_partial=True)
        self.look()

    # Losses

    def _plan_losses(self, seed: int) -> None:
        rate = self._workload.cluster.losses_per_node_hour / 3600.0
        if not rate:
            return
        for node in self.nodes.values():
            chance = Random(f"{seed}/{node.name}")
            self._clock.after(chance.expovariate(rate), partial(self._lose, node, chance, rate))

    def _lose(self, node: SimulatedNode, chance: Random, rate: float) -> None:
        within = node.engine.tokens_within(FLUSH_S) if self._policy.resumes else float("inf")
        running = [*node.engine.running]
        node.engine.abort()
        self.regenerated += sum(session.lose(within) for session in running)
        for partition in [*node.held]:
            self._forget(node, partition)
        node.vanish()
        self._watcher.node_lost(node)
        self._clock.after(DEAD_TICKS * TICK_S, self.look)
        back_s = self._workload.cluster.return_s
        self._clock.after(back_s, partial(self._return, node))
        self._clock.after(back_s + chance.expovariate(rate), partial(self._lose, node, chance, rate))

    def _return(self, node: SimulatedNode) -> None:
        last = self._roles.get(node.name)
        node.come_back(last[1] if last is not None else None)
        self._by_incarnation[node.incarnation] = node
        if node.tags == ("train",):
            node.be("serving", "ready")
        elif node.role is not None and (node.role.asleep or node.role.role == "train"):
            node.be("asleep", "ready")
        else:
            node.be("loading", "switch")
            self._switch(node, "serving", "rollout", node.costs.wake_s)
        self._watcher.fleet_changed()
        self.look()

    def _make_node(self, number: int) -> SimulatedNode:
        tags: tuple[Tag, ...] = ("rollout", "train")
        if self._policy.train_nodes:
            tags = ("train",) if number < self._policy.train_nodes else ("rollout",)
        capacity = self._workload.cluster.capacity(number)
        return SimulatedNode(f"n{number:04}", tags, capacity, self._clock, self._workload.costs(), self._ended)

    def _ended(self, session: Session) -> None:
        del self._requests[session.partition][session]
        self._watcher.request_ended(session)
