"""Whole runs: periods by hand where all sessions are equal, and what always holds where they are not."""

from __future__ import annotations

from math import ceil

import pytest

from infra.simulate.compare import calibrated, compare, run_once
from infra.simulate.figures import figures_of
from infra.simulate.policies import policy
from infra.simulate.sessions import draw_group
from infra.simulate.workload import Workload
from infra.simulate.world import World
from tests.unit.infra.simulate.small import workload

HOPS_S = 1.0
"""More than all records of a step take together on their way."""
ALL = ("colocated_sync", "static_2", "one_off_2", "async_2", "async_partial_2", "tags_ungated", "tags")
VARIED = {
    "cluster": {"nodes": 6, "partitions": 12, "capacities": (1.0, 0.5)},
    "session": {
        "members": 4, "groups_per_step": 6, "turns": (1, 3), "output_tokens": {"median": 200, "p99_ratio": 10}, "prompt_tokens": 100,
        "environment_s": 2.0,
    },
}


def test_a_colocated_step_is_generation_sleep_training_and_wake() -> None:
    found = figures_of(run_once(workload(), "colocated_sync", 0), 4)
    # two sessions a node: 100 tokens of 0.02 s; 1 s to sleep, 10 s of training, 1 s to wake
    assert 14.0 <= found["step_s"] <= 14.0 + HOPS_S
    assert found["tokens_per_node_second"] == pytest.approx(400 / (2 * found["step_s"]))
    assert found["switching"] == pytest.approx(2 / found["step_s"], rel=0.01)
    assert found["bubble"] == pytest.approx(1 - 12 / found["step_s"], rel=0.01)
    assert (found["staleness"], found["switches"], found["dropped"]) == (0.0, 2.0, 0.0)


def test_a_static_split_without_a_batch_ahead_takes_turns_and_with_one_overlaps() -> None:
    turns = figures_of(run_once(workload(), "static_1", 0), 4)
    # four sessions on one node: 100 tokens of 0.03 s; 20 s of training on the other
    assert 23.0 <= turns["step_s"] <= 23.0 + HOPS_S
    assert turns["bubble_train"] == pytest.approx(1 - 20 / turns["step_s"], rel=0.02)
    assert turns["bubble_rollout"] == pytest.approx(1 - 3 / turns["step_s"], rel=0.02)
    for name, staleness in (("one_off_1", 1.0), ("async_partial_1", 2.0)):
        found = figures_of(run_once(workload(), name, 0), 4)
        assert found["step_s"] == pytest.approx(20.0)
        assert (found["bubble_train"], found["staleness"]) == (pytest.approx(0.0, abs=1e-9), staleness)


def test_tags_find_the_split_that_a_hand_would() -> None:
    eight = workload(cluster={"nodes": 8, "partitions": 16}, session={"groups_per_step": 16}, training={"staleness": 4})
    # 80 node-seconds of training, and four batches of 32 sessions with 100 tokens ahead. On one node, 128 requests have a token each
    # 0.65 s: a batch each 16.3 s. On two, 64 each have one each 0.33 s: a batch each 8.3 s. Six train for 13.3 s, which is the best.
    found = figures_of(run_once(eight, "tags", 0), 4)
    assert found["step_s"] == pytest.approx(80 / 6)
    assert found["tokens_per_node_second"] == pytest.approx(3200 / (8 * 80 / 6))


def test_share_and_generation_are_calibrated() -> None:
    by_share = calibrated(workload(training={"step_s": 0, "share": 0.25}))
    assert by_share.training.step_s == pytest.approx(2.0 / 3.0, rel=0.2)  # a third of 2 s of generation, and a few hops
    by_length = calibrated(workload(training={"generation_s": 8.0}))
    assert by_length.session.output_tokens.median == pytest.approx(400.0, rel=0.05)


@pytest.mark.parametrize("name", ALL)
def test_what_always_holds(name: str) -> None:
    """Nobody generates in a step, a request is in one engine, the bound holds, every node-second is counted, each token once."""
    found = workload(**VARIED)
    world = World(found, policy(name, found), 3)
    wanted = found.warm_up + found.steps
    world.clock.run(lambda: _holds(world) and len(world.trainer.rows) >= wanted, 1e6)
    run = world.run()
    bound = (policy(name, found).ahead + 1) * found.session.groups_per_step
    assert 0 < run.most_in_flight <= bound
    assert sum(run.closed.seconds.values()) == pytest.approx(found.cluster.nodes * world.clock.now_s)
    assert run.closed.busy_s <= run.closed.seconds["rollout"] + 1e-6
    assert run_once(found, name, 3).rows == run.rows


def _holds(world: World) -> bool:
    nodes = world.fleet.nodes.values()
    for node in nodes:
        if node.mode != "rollout":
            assert not node.engine.load, f"{node.name} has requests and is in mode {node.mode}"
            assert not node.held
    assert world.rollouts.in_flight <= world.rollouts.bound_groups
    running = [session for node in nodes for session in node.engine.running]
    assert len(running) == len(set(running))
    held = [partition for node in nodes for partition in node.held]
    assert len(held) == len(set(held))
    return True


def test_every_sampled_token_of_a_batch_is_trained_or_masked_once() -> None:
    found = workload(**VARIED)
    rows = run_once(found, "colocated_sync", 5).rows
    for number, row in enumerate(rows):
        groups = [draw_group(found.session, 5, number * 6 + index, 0.0) for index in range(6)]
        drawn = sum(sum(session.outputs) for group in groups for session in group.sessions)
        assert (row.trained, row.masked) == (pytest.approx(drawn), 0.0)


@pytest.mark.parametrize("name", ["colocated_sync", "async_partial_2", "tags"])
def test_lost_nodes_cost_time_and_nothing_else(name: str) -> None:
    spot = workload(**VARIED | {"cluster": VARIED["cluster"] | {"losses_per_node_hour": 30.0, "return_s": 20.0}})
    world = World(spot, policy(name, spot), 1)
    world.clock.run(lambda: _holds(world) and len(world.trainer.rows) >= 30, 1e6)
    run = world.run()
    assert run.closed.seconds["gone"] > 0
    assert all(row.trained > 0 for row in run.rows)
    lost = sum(1 for stretches in run.stretches.values() for stretch in stretches if stretch.mode == "gone")
    assert lost >= 3, "the test needs more losses"


def test_a_log_saves_what_a_lost_node_had_sampled() -> None:
    spot = workload(**VARIED | {"cluster": VARIED["cluster"] | {"losses_per_node_hour": 60.0, "return_s": 20.0}})
    again = {name: run_once(spot, name, 1).closed.regenerated for name in ("async_2", "async_partial_2")}
    assert again["async_partial_2"] < again["async_2"] / 2


def test_a_comparison_has_each_policy_with_its_interval() -> None:
    found = list(compare(_named("colocated_sync", "static_1"), range(2)))
    assert [each.name for each in found] == ["colocated_sync", "static_1"]
    for each in found:
        step = each.figures["step_s"]
        assert step.low <= step.mean <= step.high
        assert ceil(step.mean) in (14, 15, 23, 24)


def _named(*policies: str) -> Workload:
    return workload().model_copy(update={"policies": policies})
