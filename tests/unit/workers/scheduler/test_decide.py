"""Decisions by hand, and their laws under random events on simulated nodes that follow the grants at their own pace."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.grant import Grant
from schemas.node import Control, NodeStatus, State, Tick
from schemas.record import Record
from workers.scheduler.decide import decide
from workers.scheduler.roster import Roster
from workers.scheduler.shares import shares_of
from workers.scheduler.view import DEAD_TICKS, HeldGrant, NodeView, View

PARTITIONS = 7


def node(name: str = "a", **more: Any) -> NodeView:
    values: dict[str, Any] = {
        "node": name, "incarnation": f"{name}1", "tags": ("rollout",), "state": "serving", "capacity": 1.0, "ticks": 0, "is_heard": True,
        "grants_seen": 0, "partitions": frozenset(),
    }
    return NodeView(**values | more)


def granted(*owners: str) -> dict[int, HeldGrant]:
    """Partition n is granted to the incarnation `owners[n]` (its last character counts the incarnation), at offset n."""
    return {n: HeldGrant(n, Grant(partition=n, node=owner[:-1], incarnation=owner)) for n, owner in enumerate(owners)}


def view(*nodes: NodeView, grants: dict[int, HeldGrant] | None = None, partitions: int = 4, **more: Any) -> View:
    return View(partitions=partitions, nodes={found.node: found for found in nodes}, grants=grants or {}, **more)


def described(found: View) -> list[tuple[int, str, str]]:
    changes = decide(found)
    assert all(isinstance(change, Grant) for change in changes)
    return sorted((change.partition, change.incarnation, change.cause) for change in changes if isinstance(change, Grant))


def test_the_first_node_gets_everything_and_the_reason_has_its_figures() -> None:
    (first, *_) = changes = decide(view(node()))
    assert [(change.partition, change.incarnation) for change in changes if isinstance(change, Grant)] == [(n, "a1") for n in range(4)]
    assert isinstance(first, Grant)
    assert (first.cause, first.reason) == ("joined", "it had no owner; a has 0 partitions, its share is 4 of 4, by capacity 1 of 1")


def test_a_second_node_is_made_room_for_with_the_fewest_moves_and_gets_them_once_they_are_let_go() -> None:
    grants = granted("a1", "a1", "a1", "a1")
    (first, second) = decide(view(node(grants_seen=4, partitions=frozenset(range(4))), node("b"), grants=grants))
    assert isinstance(first, Grant)
    assert isinstance(second, Grant)
    assert [(c.partition, c.node, c.holder, c.cause) for c in (first, second)] == [(3, "", "a1", "moved"), (2, "", "a1", "moved")]
    grants |= {3: HeldGrant(4, first), 2: HeldGrant(5, second)}
    assert described(view(node(grants_seen=4, partitions=frozenset(range(4))), node("b"), grants=grants)) == []
    assert described(view(node(grants_seen=6, partitions=frozenset({0, 1, 2})), node("b"), grants=grants)) == [(3, "b1", "moved")]
    assert described(view(node(grants_seen=5, partitions=frozenset({0, 1})), node("b"), grants=grants)) == [(3, "b1", "moved")]


def test_four_own_ticks_without_a_status_are_death_and_three_are_not() -> None:
    grants = granted("a1", "a1", "b1", "b1")
    assert described(view(node(ticks=3), node("b"), grants=grants)) == []
    assert described(view(node(ticks=4), node("b"), grants=grants)) == [(0, "b1", "dead"), (1, "b1", "dead")]


def test_a_new_incarnation_means_that_the_old_one_is_dead_at_once() -> None:
    grants = granted("a1", "a1", "b1", "b1")
    assert described(view(node(incarnation="a2"), node("b"), grants=grants)) == [(0, "a2", "dead"), (1, "a2", "dead")]


def test_a_node_that_left_hands_over_at_once() -> None:
    grants = granted("a1", "a1", "b1", "b1")
    assert described(view(node(state="left"), node("b"), grants=grants)) == [(0, "b1", "moved"), (1, "b1", "moved")]


def test_pause_takes_everything_and_resume_gives_back_without_waiting() -> None:
    grants = granted("a1", "a1", "b1", "b1")
    found = view(node(), node("b"), grants=grants, is_paused=True)
    revokes = [change for change in decide(found) if isinstance(change, Grant)]
    assert [(c.partition, c.node, c.holder, c.cause, c.reason) for c in revokes] == [
        (n, "", owner, "moved", "paused") for n, owner in enumerate(("a1", "a1", "b1", "b1"))
    ]
    grants = {c.partition: HeldGrant(4 + c.partition, c) for c in revokes}
    assert described(view(node(), node("b"), grants=grants, is_paused=True)) == []
    given_back = [(0, "a1", "moved"), (1, "a1", "moved"), (2, "b1", "moved"), (3, "b1", "moved")]
    assert described(view(node(), node("b"), grants=grants)) == given_back


def test_a_drained_node_gives_up_all_and_gets_nothing() -> None:
    grants = granted("a1", "a1", "b1", "b1")
    found = view(node(), node("b"), grants=grants, draining=frozenset({"a"}))
    assert described(found) == [(0, "", "moved"), (1, "", "moved")]
    assert described(view(node(), draining=frozenset({"a"}))) == []


def test_only_serving_rollout_nodes_are_granted_anything() -> None:
    assert described(view(node(tags=("train",)), node("b", state="loading"), node("c", state="asleep"), node("d", is_heard=False))) == []


def test_a_node_that_loads_keeps_what_it_has_and_gets_nothing_more() -> None:
    grants = granted("a1", "a1", "a1", "c1")
    found = view(node(state="loading"), node("b"), node("c", ticks=DEAD_TICKS), grants=grants)
    assert described(found) == [(3, "b1", "dead")]


def test_nothing_moves_while_a_node_may_be_dead() -> None:
    grants = granted("a1", "a1", "a1", "b1")
    assert described(view(node(), node("b"), node("c", is_heard=False), grants=grants)) == []
    assert described(view(node(), node("b"), node("c", is_heard=False, ticks=DEAD_TICKS), grants=grants)) == [(2, "", "moved")]


def test_shares_by_capacity() -> None:
    assert shares_of(16, {"a": 1.0, "b": 3.0}, {}) == {"a": 4, "b": 12}
    assert shares_of(5, {"a": 1.0, "b": 1.0}, {"a": 2, "b": 3}) == {"a": 2, "b": 3}
    assert shares_of(5, {"a": 1.0, "b": 1.0}, {"a": 5}) == {"a": 3, "b": 2}
    assert shares_of(3, {"a": 0.0, "b": float("nan")}, {}) == {"a": 2, "b": 1}
    assert shares_of(3, {}, {}) == {}


@dataclass
class SimulatedNode:
    """Follows the grants when it is told to: first it reads, then it reports."""

    name: str
    incarnation: str
    capacity: float
    state: State = "serving"
    seen: int = 0
    held: set[int] = field(default_factory=set)
    is_alive: bool = True

    def follow(self, grants: list[Grant], upto: int) -> None:
        for grant in grants[self.seen : upto]:
            if grant.incarnation == self.incarnation:
                self.held.add(grant.partition)
            else:
                self.held.discard(grant.partition)
        self.seen = max(self.seen, upto)

    def status(self) -> NodeStatus:
        return NodeStatus(
            node=self.name, incarnation=self.incarnation, tags=["rollout"], state=self.state, capacity=self.capacity, grants_seen=self.seen,
            partitions=sorted(self.held),
        )


class World:
    """Nodes, the log of grants, and the scheduler's view of both. Every grant is checked when it is made."""

    def __init__(self) -> None:
        self.roster = Roster("me", DEAD_TICKS)
        self.grants: list[Grant] = []
        self.last: dict[int, HeldGrant] = {}
        self.nodes: dict[str, SimulatedNode] = {}
        self.old: list[SimulatedNode] = []
        self.count = 0

    def tell(self, record: Record) -> None:
        self.roster.apply(record, is_heard=True)

    def start(self, name: str, capacity: float) -> None:
        self.count += 1
        if name in self.nodes:
            self.old.append(self.nodes[name])
            self.nodes[name].is_alive = False
        self.nodes[name] = SimulatedNode(name, f"{name}{self.count}", capacity)
        self.tell(self.nodes[name].status())

    def view(self) -> View:
        return self.roster.view(PARTITIONS, dict(self.last))

    def round(self) -> int:
        found = self.view()
        changes = decide(found)
        for change in changes:
            assert isinstance(change, Grant)
            self._check(change, found)
            self.last[change.partition] = HeldGrant(len(self.grants), change)
            self.grants.append(change)
        return len(changes)

    def _check(self, grant: Grant, found: View) -> None:
        last = self.last.get(grant.partition)
        if not grant.node or last is None:
            return
        holder = last.grant.incarnation or last.grant.holder
        if holder == grant.incarnation or self._is_dead(holder, found):
            return
        assert not last.grant.node, f"partition {grant.partition} was granted while {holder} owns it"
        (owner,) = [candidate for candidate in self.nodes.values() if candidate.incarnation == holder]
        assert owner.seen > last.offset, f"{holder} has not read the revoke of {grant.partition}"
        assert grant.partition not in owner.held

    def _is_dead(self, incarnation: str, found: View) -> bool:
        """By the rules' own words: not the newest incarnation of its name, silent for four ticks, or it left."""
        return all(n.incarnation != incarnation or n.ticks >= DEAD_TICKS or n.state == "left" for n in found.nodes.values())

    def settle(self) -> None:
        """Everybody that lives answers at once, until nothing changes."""
        self.tell(Control(command="resume"))
        for _ in range(DEAD_TICKS):
            self.tell(Tick(scheduler="me", number=self.roster.ticks + 1))
            self.answer_all()
            self.round()
        rounds = 0
        while self.round():
            self.answer_all()
            rounds += 1
            assert rounds <= 3, "more than revoke, acknowledge, grant"
        assert self.round() == 0

    def answer_all(self) -> None:
        for simulated in self.nodes.values():
            if simulated.is_alive:
                simulated.follow(self.grants, len(self.grants))
                self.tell(simulated.status())


NAMES = st.sampled_from("abcd")
EVENTS = st.one_of(
    st.tuples(st.just("start"), NAMES, st.sampled_from([0.5, 1.0, 1.0, 3.0])),
    st.tuples(st.sampled_from(["kill", "leave", "report", "zombie"]), NAMES, st.just(0.0)),
    st.tuples(st.just("follow"), NAMES, st.floats(0, 1)),
    st.tuples(st.sampled_from(["drain", "undrain"]), NAMES, st.just(0.0)),
    st.tuples(st.sampled_from(["pause", "resume", "tick", "tick", "round", "round"]), st.just(""), st.just(0.0)),
    st.tuples(st.sampled_from(["loading", "serving"]), NAMES, st.just(0.0)),
)


def happen(world: World, event: tuple[str, str, float]) -> None:
    what, name, figure = event
    found = world.nodes.get(name)
    if what == "start":
        world.start(name, figure)
    elif what == "round":
        world.round()
    elif what == "tick":
        world.tell(Tick(scheduler="me", number=world.roster.ticks + 1))
    elif what in ("pause", "resume", "drain", "undrain"):
        world.tell(Control(command=what, node=name))  # type: ignore[arg-type]
    elif what == "zombie":
        for old in (old for old in world.old if old.name == name):
            world.tell(old.status())
    elif found is not None and found.is_alive:
        act(world, found, what, figure)


def act(world: World, found: SimulatedNode, what: str, figure: float) -> None:
    if what == "kill":
        found.is_alive = False
    elif what == "follow":
        found.follow(world.grants, found.seen + round((len(world.grants) - found.seen) * figure))
    elif what == "report":
        world.tell(found.status())
    elif what == "leave":
        found.held.clear()
        found.state, found.is_alive = "left", False
        world.tell(found.status())
    else:
        found.state = what  # type: ignore[assignment]
        world.tell(found.status())


@settings(max_examples=300, deadline=None)
@given(st.lists(EVENTS, max_size=60))
def test_never_two_owners_everything_owned_even_and_at_rest(events: list[tuple[str, str, float]]) -> None:
    world = World()
    for event in events:
        happen(world, event)
    for name in "abcd":
        world.tell(Control(command="undrain", node=name))
    for simulated in world.nodes.values():
        simulated.state = "serving" if simulated.is_alive else simulated.state
    world.settle()
    living = {simulated.incarnation: simulated for simulated in world.nodes.values() if simulated.is_alive}
    if not living:
        return
    owners = Counter(held.grant.incarnation for held in world.last.values())
    assert sum(owners.values()) == PARTITIONS
    assert set(owners) <= set(living)
    total = sum(simulated.capacity for simulated in living.values())
    for incarnation, simulated in living.items():
        assert abs(owners[incarnation] - PARTITIONS * simulated.capacity / total) < 1


@settings(max_examples=200, deadline=None)
@given(
    st.integers(0, 300),
    st.dictionaries(st.text("abcdefgh", min_size=1, max_size=3), st.tuples(st.floats(0, 1e6), st.integers(0, 300)), min_size=1),
)
def test_shares_add_up_stay_within_one_and_stand_still(partitions: int, nodes: dict[str, tuple[float, int]]) -> None:
    capacities = {name: capacity for name, (capacity, _) in nodes.items()}
    shares = shares_of(partitions, capacities, {name: held for name, (_, held) in nodes.items()})
    assert sum(shares.values()) == partitions
    weights = {name: max(capacity, 1e-6) for name, capacity in capacities.items()}
    for name, share in shares.items():
        assert abs(share - partitions * weights[name] / sum(weights.values())) < 1 + 1e-6
    assert shares_of(partitions, capacities, shares) == shares
