"""Nodes that alternate, simulated: each follows Grants and Roles at its own pace, and refuses what would be wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.grant import Grant, Role
from schemas.node import Control, NodeStatus, State, Tag, Tick
from workers.scheduler.decide import Change, decide
from workers.scheduler.roster import Roster
from workers.scheduler.training import Costs, Training
from workers.scheduler.view import DEAD_TICKS, HeldGrant, View

PARTITIONS = 5
BOTH: tuple[Tag, ...] = ("rollout", "train")


@dataclass
class AlternatingNode:
    """It reads when it is told to, steps when it is told to, and reports when it is told to. An engine is awake where its Role lets it."""

    name: str
    incarnation: str
    tags: tuple[Tag, ...]
    capacity: float = 1.0
    seen: int = 0
    held: set[int] = field(default_factory=set)
    role: Role | None = None
    is_stepping: bool = False
    is_alive: bool = True
    is_awake: bool = True

    @property
    def may_step(self) -> bool:
        return self.role is not None and self.role.role == "train" and not self.role.asleep

    @property
    def state(self) -> State:
        if self.is_stepping:
            return "training"
        if self.is_awake and self.role is not None and self.role.asleep:
            return "draining"
        return "serving" if self.is_awake else "asleep"

    def nap(self) -> None:
        """The engine falls asleep, if it was told to: that takes a while."""
        if self.role is not None and self.role.asleep:
            self.is_awake = False

    def follow(self, log: list[Change], upto: int) -> None:
        for change in log[self.seen : upto]:
            if isinstance(change, Role):
                self._turn(change)
            elif change.incarnation == self.incarnation:
                assert self.is_awake, f"{self.name} is granted {change.partition} and sleeps"
                self.held.add(change.partition)
            else:
                self.held.discard(change.partition)
        self.seen = max(self.seen, upto)

    def _turn(self, role: Role) -> None:
        if role.node != self.name:
            return
        before, self.role = self.role, role
        if role.asleep:
            return
        assert before is not None, f"{self.name} is to {role.role} and was never put to sleep"
        assert before.asleep, f"{self.name} turns from {before.role} to {role.role} without sleep"
        assert not self.is_stepping, f"{self.name} is to {role.role} in the middle of a step"
        assert not self.held, f"{self.name} is to {role.role} and holds {self.held}"
        assert not self.is_awake, f"{self.name} is to {role.role} and has not fallen asleep"
        self.is_awake = role.role == "rollout"

    def status(self) -> NodeStatus:
        return NodeStatus(
            node=self.name, incarnation=self.incarnation, tags=list(self.tags), state=self.state, capacity=self.capacity,
            grants_seen=self.seen, partitions=sorted(self.held),
        )


class RoleWorld:
    """Nodes, one log of Grants and Roles, the scheduler's view of both, and how far training is."""

    def __init__(self) -> None:
        self.roster = Roster("me", DEAD_TICKS)
        self.log: list[Change] = []
        self.last: dict[int, HeldGrant] = {}
        self.roles: dict[str, Role] = {}
        self.nodes: dict[str, AlternatingNode] = {}
        self.ready = 0
        self.step_node_s = 0.0
        self.costs = Costs()
        self.least_nodes = 1
        self.switches: dict[str, int] = {}
        self.count = 0

    def start(self, name: str, tags: tuple[Tag, ...] = BOTH, capacity: float = 1.0) -> AlternatingNode:
        self.count += 1
        if name in self.nodes:
            self.nodes[name].is_alive = False
        role = self.roles.get(name)
        is_awake = role is None or (role.role == "rollout" and not role.asleep)
        found = AlternatingNode(name, f"{name}{self.count}", tags, capacity, seen=len(self.log), role=role, is_awake=is_awake)
        self.nodes[name] = found
        self.tell(found)
        return found

    def tell(self, node: AlternatingNode) -> None:
        self.roster.apply(node.status(), is_heard=True)

    def tick(self) -> None:
        self.roster.apply(Tick(scheduler="me", number=self.roster.ticks + 1), is_heard=True)

    def wish(self, command: str, name: str = "") -> None:
        self.roster.apply(Control(command=command, node=name), is_heard=True)  # type: ignore[arg-type]

    @property
    def is_stepping(self) -> bool:
        return any(node.is_stepping and node.is_alive for node in self.nodes.values())

    def view(self) -> View:
        """Of a step the scheduler knows what statuses say."""
        is_stepping = any(node.state == "training" for node in self.roster.view(PARTITIONS, {}).living().values())
        training = Training(
            groups_per_step=2, ready_groups=self.ready, bound_groups=4, is_stepping=is_stepping, step_node_s=self.step_node_s,
            batch_tokens=1e5 if self.step_node_s else 0.0, requests_per_group=10.0, costs=self.costs,
            least_nodes=self.least_nodes,
        )
        return self.roster.view(PARTITIONS, dict(self.last), training)

    def round(self) -> list[Change]:
        changes = decide(self.view())
        for change in changes:
            assert change.reason
            if isinstance(change, Grant):
                self._check_owner(change)
                self.last[change.partition] = HeldGrant(len(self.log), change)
            else:
                self.roster.hold(len(self.log), change)
                self.roles[change.node] = change
                self.switches[change.node] = self.switches.get(change.node, 0) + (not change.asleep)
            self.log.append(change)
        return changes

    def _check_owner(self, grant: Grant) -> None:
        last = self.last.get(grant.partition)
        if not grant.node or last is None:
            return
        holder = last.grant.incarnation or last.grant.holder
        owners = [node for node in self.nodes.values() if node.incarnation == holder and node.incarnation != grant.incarnation]
        known = self.roster.view(PARTITIONS, {}).nodes
        for owner in owners:
            if known[owner.name].ticks < DEAD_TICKS:
                assert grant.partition not in owner.held, f"{grant.partition} has two owners: {owner.name} and {grant.node}"

    def begin_step(self) -> None:
        """All that may step do, if a batch is ready."""
        gang = [node for node in self.nodes.values() if node.is_alive and node.may_step]
        if self.ready < 2 or not gang or self.is_stepping:
            return
        for node in gang:
            assert not node.is_awake
            assert not node.held
            node.is_stepping = True
        self.ready -= 2

    def end_step(self) -> None:
        for node in self.nodes.values():
            node.is_stepping = False
        self.switches.clear()

    def answer_all(self) -> None:
        for node in self.nodes.values():
            if node.is_alive:
                node.follow(self.log, len(self.log))
                node.nap()
                self.tell(node)

    def settle(self) -> int:
        """Everybody that lives answers at once, until nothing changes; answers the rounds that it took."""
        for _ in range(DEAD_TICKS):
            self.tick()
            self.answer_all()
        rounds = 0
        while self.round():
            self.answer_all()
            rounds += 1
            assert rounds <= 12, "it never comes to rest"
        return rounds
