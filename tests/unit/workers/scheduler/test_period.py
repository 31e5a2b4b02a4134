"""Periods by hand: every figure below is worked out in the comment beside it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.scheduler.period import Cluster, alternating, best, standing
from workers.scheduler.training import Costs, Recent, Training

COSTS = Costs(sleep_s=10.0, wake_s=10.0, sync_s=0.0, iteration_s=0.0, request_s=0.001, slots=1000)
"""An iteration in proportion to its requests: a node of capacity 1 samples 1,000 tokens a second, however many requests it has."""


def training(**more: object) -> Training:
    values: dict[str, object] = {
        "groups_per_step": 64, "ready_groups": 64, "bound_groups": 128, "is_stepping": False, "step_node_s": 800.0,
        "batch_tokens": 800_000.0, "requests_per_group": 1.25, "costs": COSTS,
    }
    return Training(**values | more)  # type: ignore[arg-type]


EIGHT = Cluster([1.0] * 8)


def test_half_and_half_overlap_where_both_take_as_long() -> None:
    found = standing(EIGHT, training(), 4)
    assert found.train_s == 200.0  # 800 / 4
    assert found.gather_s == found.period_s == pytest.approx(200.0)  # 800,000 / (4 * 1,000)


def test_without_a_batch_ahead_nothing_overlaps() -> None:
    found = standing(EIGHT, training(bound_groups=64), 4)
    assert found.period_s == pytest.approx(400.0)


def test_half_a_batch_ahead_overlaps_by_half_of_the_gathering() -> None:
    found = standing(EIGHT, training(bound_groups=96), 4)
    assert found.period_s == pytest.approx(300.0)


def test_all_in_turn_is_the_colocated_cluster() -> None:
    found = alternating(EIGHT, training(), 8)
    assert (found.train_s, found.gather_s, found.switch_s) == (100.0, pytest.approx(100.0), pytest.approx(20.0))
    assert found.period_s == pytest.approx(220.0)


def test_six_in_turn_gather_on_two_meanwhile() -> None:
    found = alternating(EIGHT, training(), 6)
    assert found.train_s == pytest.approx(800 / 6)  # 133.3 s; two nodes need 400 s for a batch: a third of it is gathered meanwhile
    assert found.gather_s == pytest.approx(2 / 3 * 100)
    assert found.switch_s == pytest.approx(10 + 10 * 6 / 8)
    assert found.period_s == pytest.approx(800 / 6 + 200 / 3 + 17.5)


def test_moves_and_updates_are_charged_with_what_is_computed_again() -> None:
    costs = COSTS._replace(prefill_tokens_per_s=1000.0, sync_s=3.0)
    found = alternating(EIGHT, training(request_context_tokens=1000.0, costs=costs), 4)
    assert found.switch_s == pytest.approx(10 + 5 + 40_000 / 4000 + 40_000 / 8000)  # half of the contexts out to four, and back among eight
    assert found.gather_s == pytest.approx(0.0 + 3 + 80_000 / 8000)
    stay = standing(EIGHT, training(request_context_tokens=1000.0, costs=costs), 4)
    assert stay.gather_s == pytest.approx(200 + 3 + 80_000 / 4000)


def test_where_an_iteration_hardly_depends_on_its_batch_few_nodes_gather_nearly_as_fast_as_many() -> None:
    costs = COSTS._replace(iteration_s=0.1)
    slow = standing(EIGHT, training(costs=costs), 7)  # 80 requests on one node: 0.18 s a token
    fast = standing(EIGHT, training(costs=costs), 1)  # 80/7 on each of seven: 0.1114 s a token
    assert slow.gather_s == pytest.approx(800_000 * 0.18 / 80)
    assert fast.gather_s == pytest.approx(800_000 * (0.1 + 0.001 * 80 / 7) / 80)
    assert best(EIGHT, training(costs=costs, step_node_s=10_000.0)) == standing(EIGHT, training(costs=costs, step_node_s=10_000.0), 6)


def test_requests_beyond_the_slots_wait() -> None:
    costs = COSTS._replace(iteration_s=0.1, slots=10)
    found = standing(EIGHT, training(costs=costs), 4)
    assert found.gather_s == pytest.approx(800_000 * 0.11 / (10 * 4))


def test_the_slowest_of_a_gang_sets_its_pace() -> None:
    mixed = Cluster([2.0, 2.0, 1.0, 1.0], rollout=1.0, train=0.5)
    assert mixed.training(2) == 4.5
    assert mixed.training(3) == 3.5
    assert mixed.training(0) == 0.5
    assert mixed.generating(2) == 3.0
    found = best(mixed, training(most_nodes=2))
    assert found is not None
    assert found.trainers <= 2


def test_dear_switches_make_trainers_stay_and_cheap_ones_make_them_return() -> None:
    uneven = training(step_node_s=200.0)  # standing: 1 trains 200 s, 7 gather 114 s; 2 train 100 s, 6 gather 133 s
    cheap = best(EIGHT, uneven._replace(costs=COSTS._replace(sleep_s=0.1, wake_s=0.1)))
    dear = best(EIGHT, uneven._replace(costs=COSTS._replace(sleep_s=60.0, wake_s=60.0)))
    assert cheap is not None
    assert dear is not None
    assert (cheap.stays, dear.stays, dear.trainers) == (False, True, 2)
    assert cheap.period_s < dear.period_s == pytest.approx(800 / 6)


def test_nobody_can_train() -> None:
    assert best(Cluster([]), training()) is None


def test_a_mean_is_of_the_last_three_and_a_prior_stands_until_there_is_one() -> None:
    costs = Recent(10.0)
    assert costs.mean == 10.0
    for value in (1.0, 2.0, 3.0, 7.0):
        costs.add(value)
    assert costs.mean == 4.0


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=30), st.floats(1, 1e5), st.floats(1e3, 1e8), st.floats(0.01, 100),
    st.integers(64, 640), st.floats(0, 100), st.floats(0, 100),
)
def test_no_period_is_shorter_than_its_training_and_dear_switches_help_nobody(
    capacities: list[float], node_s: float, tokens: float, running: float, bound: int, switch_s: float, more_s: float
) -> None:
    cluster = Cluster(sorted(capacities, reverse=True))
    cheap = training(step_node_s=node_s, batch_tokens=tokens, requests_per_group=running, bound_groups=bound)
    cheap = cheap._replace(costs=Costs(switch_s, switch_s))
    dear = cheap._replace(costs=Costs(switch_s + more_s, switch_s + more_s))
    for trainers in range(1, len(capacities) + 1):
        assert alternating(cluster, dear, trainers).period_s >= alternating(cluster, cheap, trainers).period_s - 1e-9
        assert standing(cluster, dear, trainers) == standing(cluster, cheap, trainers)
        for found in (alternating(cluster, cheap, trainers), standing(cluster, cheap, trainers)):
            assert found.period_s >= found.train_s
            assert not math.isnan(found.period_s)
    chosen = best(cluster, cheap)
    assert chosen is not None
    every = [kind(cluster, cheap, n).period_s for kind in (alternating, standing) for n in range(1, len(capacities) + 1)]
    assert chosen.period_s == min(every)
