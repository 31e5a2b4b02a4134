"""Roles: a hand-over by hand, its laws under random events on nodes that follow at their own pace, and what each reason says."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.grant import Grant, Role
from tests.unit.workers.scheduler.role_world import BOTH, PARTITIONS, RoleWorld
from workers.scheduler.roles import ACK_TICKS
from workers.scheduler.training import Costs
from workers.scheduler.view import DEAD_TICKS


def roles_of(changes: list[Grant | Role]) -> list[tuple[str, str, bool]]:
    return [(change.node, change.role, change.asleep) for change in changes if isinstance(change, Role)]


def three_nodes() -> RoleWorld:
    world = RoleWorld()
    for name in "abc":
        world.start(name)
    world.settle()
    return world


def test_a_hand_over_goes_step_by_step() -> None:
    world = three_nodes()
    world.ready = 2
    changes = world.round()
    assert roles_of(changes) == [("a", "train", True), ("b", "train", True), ("c", "train", True)]
    revokes = [change for change in changes if isinstance(change, Grant)]
    assert [(change.node, bool(change.holder)) for change in revokes] == [("", True)] * PARTITIONS
    assert world.round() == []  # nobody has answered
    for name in "ab":
        world.nodes[name].follow(world.log, len(world.log))
        world.nodes[name].nap()
        world.tell(world.nodes[name])
    world.nodes["c"].follow(world.log, len(world.log))
    world.tell(world.nodes["c"])
    assert roles_of(world.round()) == []  # the third has let go, and does not sleep yet: the gang begins together
    world.answer_all()
    assert roles_of(world.round()) == [("a", "train", False), ("b", "train", False), ("c", "train", False)]
    world.answer_all()
    world.begin_step()
    world.answer_all()
    assert world.round() == []
    world.end_step()
    world.answer_all()
    assert roles_of(world.round()) == [("a", "rollout", True), ("b", "rollout", True), ("c", "rollout", True)]
    world.settle()
    assert {held.grant.node for held in world.last.values()} == {"a", "b", "c"}


def test_the_wish_to_return_in_the_middle_of_a_step_waits_for_its_end() -> None:
    world = three_nodes()
    world.ready = 2
    world.settle()
    world.begin_step()
    world.wish("drain", "a")
    assert roles_of(world.round()) == [("a", "rollout", True)]
    world.wish("undrain", "a")
    assert world.round() == []  # what it said last was asleep, before it read this
    world.answer_all()
    assert world.round() == []
    world.end_step()
    world.answer_all()
    assert ("a", "rollout", False) in roles_of(world.round())


def test_a_node_that_sleeps_and_still_holds_a_partition_does_not_train() -> None:
    world = three_nodes()
    world.ready = 2
    world.round()
    world.answer_all()
    world.nodes["c"].held = {0}
    world.tell(world.nodes["c"])
    assert roles_of(world.round()) == []
    world.nodes["c"].held = set()
    world.tell(world.nodes["c"])
    assert [role for _, role, asleep in roles_of(world.round()) if not asleep] == ["train"] * 3


def test_a_node_that_does_not_fall_asleep_is_waited_for_no_longer_than_it_may_take() -> None:
    world = three_nodes()
    world.ready = 2
    world.round()
    for _ in range(ACK_TICKS):
        assert roles_of(world.round()) == []
        world.tick()
        for name in "ab":
            world.nodes[name].follow(world.log, len(world.log))
            world.nodes[name].nap()
        for node in world.nodes.values():
            world.tell(node)
    assert roles_of(world.round()) == [("a", "train", False), ("b", "train", False)]


def test_a_reason_has_its_figures() -> None:
    world = three_nodes()
    world.ready, world.step_node_s, world.costs = 2, 100.0, Costs(sleep_s=1.0, wake_s=1.0)
    changes = [change for change in world.round() if isinstance(change, Role)]
    # 100,000 tokens at 1,000 a second and node. Two train for 50 s, and the third gathers half of a batch; all three gather the rest in
    # 16.7 s; 1 s of sleep, and 1 s of wake for two of three. If one stayed, it would train for 100 s; if two, one would gather
    # for 100 s.
    assert changes[0].reason == "2 train and return: a step each 68 s (50 training, 17 gathering, 2 switching); 100 s if they stayed"


def test_trainers_stay_where_a_switch_costs_more_than_it_gains_and_go_where_it_gains() -> None:
    dear, cheap = three_nodes(), three_nodes()
    for world, seconds in ((dear, 40.0), (cheap, 1.0)):
        world.ready, world.step_node_s, world.costs = 2, 100.0, Costs(sleep_s=seconds, wake_s=seconds)
        world.settle()
        world.begin_step()
        world.end_step()
        world.settle()
    assert sorted(role.role for role in dear.roles.values()) == ["train"]
    assert sorted(role.role for role in cheap.roles.values()) == ["rollout"] * 2


def test_fewer_trainers_than_a_step_needs_do_not_stay_however_dear_a_switch_is() -> None:
    world = RoleWorld()
    world.start("a")
    world.ready, world.step_node_s, world.least_nodes, world.costs = 2, 14.0, 2, Costs(sleep_s=100.0, wake_s=100.0)
    world.settle()
    assert {name: role.role for name, role in world.roles.items()} == {"a": "train"}  # alone, as long as there is nobody else
    world.start("b")
    world.settle()
    assert {name: (role.role, role.asleep) for name, role in world.roles.items()} == {"a": ("train", False), "b": ("train", False)}


def test_a_standing_gang_grows_when_the_work_does() -> None:
    world = RoleWorld()
    for name in "abcdefgh":
        world.start(name)
    world.ready, world.step_node_s, world.costs = 2, 14.0, Costs(sleep_s=100.0, wake_s=100.0)
    world.settle()
    assert Counter(role.role for role in world.roles.values()) == {"train": 1}  # 14 s by one, and 14.3 s by seven others
    world.begin_step()
    world.answer_all()
    world.step_node_s, world.ready = 60.0, 2
    assert [role for _, role, _ in roles_of(world.round())] == ["train"] * 2  # 20 s by three, and 20 s by five others
    world.settle()
    assert Counter(role.role for role in world.roles.values()) == {"train": 3}


def test_pause_changes_no_role() -> None:
    world = three_nodes()
    world.wish("pause")
    world.ready = 2
    assert roles_of(world.round()) == []


def test_nodes_of_one_tag_have_no_role() -> None:
    world = RoleWorld()
    world.start("a", ("rollout",))
    world.start("t", ("train",))
    world.ready = 2
    world.settle()
    assert world.roles == {}
    assert {held.grant.node for held in world.last.values()} == {"a"}


NAMES = st.sampled_from("abcd")
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["start", "start", "start_rollout", "kill"]), NAMES, st.sampled_from([0.5, 1.0, 2.0])),
    st.tuples(st.sampled_from(["report", "report", "nap"]), NAMES, st.just(0.0)),
    st.tuples(st.just("follow"), NAMES, st.floats(0, 1)),
    st.tuples(st.sampled_from(["drain", "undrain"]), NAMES, st.just(0.0)),
    st.tuples(st.sampled_from(["tick", "round", "round", "answer_all", "settle", "begin_step", "end_step"]), st.just(""), st.just(0.0)),
    st.tuples(st.sampled_from(["pause", "resume"]), st.just(""), st.just(0.0)),
    st.tuples(st.just("ready"), st.just(""), st.sampled_from([0.0, 2.0, 4.0])),
    st.tuples(st.just("work"), st.just(""), st.sampled_from([0.0, 10.0, 100.0, 1000.0])),
    st.tuples(st.just("switch"), st.just(""), st.sampled_from([0.0, 1.0, 10.0, 100.0])),
)


def happen(world: RoleWorld, event: tuple[str, str, float]) -> None:
    what, name, figure = event
    found = world.nodes.get(name)
    if what in ("start", "start_rollout"):
        world.start(name, BOTH if what == "start" else ("rollout",), figure)
    elif what in ("pause", "resume", "drain", "undrain"):
        world.wish(what, name)
    elif what in ("tick", "round", "answer_all", "settle", "begin_step", "end_step"):
        getattr(world, what)()
    elif what == "ready":
        world.ready = int(figure)
    elif what == "work":
        world.step_node_s = figure
    elif what == "switch":
        world.costs = Costs(sleep_s=figure, wake_s=figure)
    elif found is not None and found.is_alive:
        act(world, name, what, figure)


def act(world: RoleWorld, name: str, what: str, figure: float) -> None:
    found = world.nodes[name]
    if what == "kill":
        found.is_alive = found.is_stepping = False
    elif what == "report":
        world.tell(found)
    elif what == "nap":
        found.nap()
    else:
        found.follow(world.log, found.seen + round((len(world.log) - found.seen) * figure))


def rest(world: RoleWorld) -> None:
    """No wish, no step, nobody missing."""
    world.end_step()
    world.wish("resume")
    for name in "abcd":
        world.wish("undrain", name)


@settings(max_examples=400, deadline=None)
@given(st.lists(EVENTS, max_size=70))
def test_no_step_beside_an_awake_engine_never_two_owners_and_all_comes_to_rest(events: list[tuple[str, str, float]]) -> None:
    world = RoleWorld()
    for event in events:
        happen(world, event)
        assert not any(node.is_stepping and node.is_awake for node in world.nodes.values())
    rest(world)
    world.settle()
    living = {node.incarnation: node for node in world.nodes.values() if node.is_alive}
    awake = {incarnation for incarnation, node in living.items() if node.is_awake}
    owners = {held.grant.incarnation for held in world.last.values() if held.grant.node}
    if awake:
        assert len(world.last) == PARTITIONS
        assert owners == awake if len(awake) <= PARTITIONS and all(living[name].capacity == 1.0 for name in awake) else owners <= awake
    alternating = [node for node in living.values() if node.tags == BOTH]
    assert not any(world.roles[node.name].asleep for node in alternating if node.name in world.roles)


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.sampled_from([10.0, 100.0, 1000.0]), st.sampled_from([0.1, 10.0, 100.0])), min_size=1, max_size=12),
)
def test_a_node_switches_at_most_twice_a_step_and_every_batch_is_trained(nodes: int, steps: list[tuple[float, float]]) -> None:
    world = RoleWorld()
    for number in range(nodes):
        world.start("abcdef"[number])
    world.settle()
    for work, switch_s in steps:
        world.switches.clear()
        world.step_node_s, world.costs, world.ready = work, Costs(sleep_s=switch_s, wake_s=switch_s), 2
        world.settle()
        world.begin_step()
        assert world.ready == 0, "a batch waits, and nobody trains"
        world.settle()
        switches = dict(world.switches)
        world.end_step()
        world.switches = switches
        world.settle()
        assert max(world.switches.values(), default=0) <= 2


def test_a_dead_node_of_a_gang_is_not_waited_for() -> None:
    world = three_nodes()
    world.ready = 2
    world.round()
    world.nodes["c"].is_alive = False
    for _ in range(DEAD_TICKS):
        world.tick()
        world.answer_all()
    assert roles_of(world.round()) == [("a", "train", False), ("b", "train", False)]
