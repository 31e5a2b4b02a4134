"""What is measured of training and of switches: hand-worked figures, and the parts of a node."""

from __future__ import annotations

import pytest

from schemas.grant import Role
from schemas.node import NodeStatus, State, Tag, Tick
from schemas.training import Consumed, Plan, Run, Step
from workers.scheduler.crew import Crew
from workers.scheduler.measures import Measures
from workers.scheduler.roster import Roster
from workers.scheduler.settings import SchedulerSettings
from workers.scheduler.training import SWITCH_PRIOR_S, Training

BOTH: list[Tag] = ["rollout", "train"]


def worker(state: State = "serving", *, seen: int = 0, **more: int) -> NodeStatus:
    return NodeStatus(node="a", incarnation="a1", tags=BOTH, state=state, grants_seen=seen, **more)


def trainer(state: State = "serving", *, seen: int = 0, ready: int = 0) -> NodeStatus:
    return NodeStatus(node="t", incarnation="t1", tags=[], state=state, hosts=["a"], grants_seen=seen, ready_groups=ready)


def run() -> Run:
    return Run(run="r", settings={"feed": {"groups_per_step": 4}})


def step(update_ms: float, tokens: int) -> Step:
    return Step(
        step=1, version=0, plan=Plan(places=[], rows=[], micro_batches=[], mini_batches=[]), consumed=Consumed(), weights_sha256="",
        trained_tokens=tokens, metrics={"update_ms": update_ms, "publish_ms": 500.0},
    )  # fmt: skip


def measured(measures: Measures, roster: Roster) -> Training | None:
    return measures.training(roster.hosting, roster.view(1, {}).living())


def of(*records: NodeStatus) -> Roster:
    roster = Roster("me", 4)
    for record in records:
        roster.apply(record, is_heard=True)
    return roster


def test_nothing_is_known_without_a_trainer_that_has_hosts_or_before_its_run() -> None:
    measures = Measures(SchedulerSettings())
    measures.trained(run(), 0.0)
    alone = NodeStatus(node="t", incarnation="t1", tags=["train"], state="training")
    assert measured(measures, of(worker(), alone)) is None
    assert measured(measures, of(worker(), trainer())) is not None
    assert measured(Measures(SchedulerSettings()), of(worker(), trainer())) is None


def test_a_step_is_measured_by_its_record_and_the_nodes_that_trained() -> None:
    measures = Measures(SchedulerSettings(staleness_bound=1, least_train_nodes=2, most_train_nodes=3, margin=0.1))
    measures.trained(run(), 0.0)
    measures.hear(worker(running=6), 0.0)
    measures.trained(step(1500.0, 100), 2.0)
    measures.trained(step(3500.0, 300), 2.0)
    found = measured(measures, of(worker(), trainer("training", ready=5)))
    assert found is not None
    assert (found.groups_per_step, found.ready_groups, found.bound_groups, found.is_stepping) == (4, 5, 8, True)
    assert (found.step_node_s, found.batch_tokens, found.requests_per_group) == ((4.0 + 8.0) / 2, 200.0, (6 + 0) / 2 / 8)
    assert (found.least_nodes, found.most_nodes, found.margin) == (2, 3, 0.1)


def test_a_token_costs_what_passes_between_two_statuses_with_work() -> None:
    measures = Measures(SchedulerSettings())
    measures.trained(run(), 0.0)
    for at_s, running, tokens in ((0.0, 2, 0), (1.0, 2, 400), (2.0, 0, 500), (4.0, 1, 500), (5.0, 1, 700)):
        measures.hear(worker(running=running, tokens=tokens), at_s)
    found = measured(measures, of(worker(), trainer()))
    assert found is not None
    assert found.costs.request_s == pytest.approx((1 / 400 + 1 / 200) / 2)


def test_sleep_and_wake_are_measured_from_the_role_to_its_acknowledgement() -> None:
    measures, roster = Measures(SchedulerSettings()), of(worker(), trainer())
    measures.trained(run(), 0.0)
    told: list[tuple[float, Role, NodeStatus, float]] = [
        (10.0, Role(node="a", role="train", asleep=True), worker("asleep", seen=1), 13.0),
        (13.0, Role(node="a", role="train"), worker("asleep", seen=2), 14.0),
        (20.0, Role(node="a", role="rollout", asleep=True), worker("asleep", seen=3), 29.0),
        (30.0, Role(node="a", role="rollout"), worker("serving", seen=4), 35.0),
    ]
    for offset, (at_s, role, answer, seen_s) in enumerate(told):
        roster.hold(offset, role)
        measures.wrote(role, at_s)
        measures.look(roster.view(1, {}), at_s + 0.5)
        roster.apply(answer, is_heard=True)
        measures.look(roster.view(1, {}), seen_s - 0.25)  # the trainer has not seen it
        roster.apply(trainer(seen=offset + 1), is_heard=True)
        measures.look(roster.view(1, {}), seen_s)
    found = measured(measures, roster)
    assert found is not None
    assert (found.costs.sleep_s, found.costs.wake_s) == (3.0, 5.0)
    assert SWITCH_PRIOR_S not in (found.costs.sleep_s, found.costs.wake_s)


def test_a_node_sleeps_when_all_its_living_parts_have_seen_the_role() -> None:
    roster = of(worker("asleep", seen=8), trainer("training", seen=7))
    roster.hold(7, Role(node="a", role="rollout", asleep=True))
    assert not Crew(roster.view(1, {})).sleeps("a")  # a step runs that began before the Role
    roster.apply(trainer(seen=8), is_heard=True)
    assert Crew(roster.view(1, {})).sleeps("a")
    roster.apply(trainer("training", seen=7), is_heard=True)
    for number in range(4):
        roster.apply(worker("asleep", seen=8), is_heard=True)
        assert not Crew(roster.view(1, {})).sleeps("a")
        roster.apply(Tick(scheduler="me", number=number + 1), is_heard=True)
    assert Crew(roster.view(1, {})).sleeps("a")  # the trainer is dead
    roster.apply(trainer("left", seen=7), is_heard=True)
    assert Crew(roster.view(1, {})).sleeps("a")


def test_a_trainer_that_is_gone_has_no_batch_and_no_step() -> None:
    measures = Measures(SchedulerSettings())
    measures.trained(run(), 0.0)
    for last_word in (trainer("left", ready=9), trainer("training", ready=9)):
        roster = of(worker(), last_word)
        for number in range(4):
            roster.apply(Tick(scheduler="me", number=number + 1), is_heard=True)
        found = measured(measures, roster)
        assert found is not None
        assert (found.ready_groups, found.is_stepping) == (0, False)
