"""Advantages, worked by hand."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import UsageError
from trainer.advantages import Baseline, Grpo, make_advantage


def test_grpo_by_hand() -> None:
    # mean 0.5, squared distances 3 · 0.25² + 0.75² = 0.75, sample variance 0.75 / 3, deviation 0.5
    assert Grpo(epsilon=0.0)([0.25, 0.25, 0.25, 1.25]) == [-0.5, -0.5, -0.5, 1.5]


def test_grpo_adds_epsilon_to_the_deviation() -> None:
    assert Grpo(epsilon=0.5)([0.25, 0.25, 0.25, 1.25]) == [-0.25, -0.25, -0.25, 0.75]


@pytest.mark.parametrize("rewards", [[], [0.7], [0.3, 0.3, 0.3]])
def test_a_group_without_variance_has_no_signal(rewards: list[float]) -> None:
    assert Grpo()(rewards) == [0.0] * len(rewards)


@given(st.lists(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), min_size=2, max_size=16).filter(lambda rewards: len(set(rewards)) > 1))
def test_grpo_against_the_standard_library(rewards: list[float]) -> None:
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    assert Grpo()(rewards) == pytest.approx([(reward - mean) / (deviation + 1e-4) for reward in rewards], abs=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.randoms())
def test_the_order_of_members_changes_no_value(rewards: list[float], draw) -> None:  # type: ignore[no-untyped-def]
    order = list(range(len(rewards)))
    draw.shuffle(order)
    straight = Grpo()(rewards)
    assert Grpo()([rewards[index] for index in order]) == [straight[index] for index in order]


def test_a_session_alone_is_compared_with_a_constant() -> None:
    assert Baseline(baseline=0.25, scale=2.0)([1.0, 0.0]) == [1.5, -0.5]


def test_the_registry_names_what_is_wrong() -> None:
    assert make_advantage("grpo", {"epsilon": 0.5}) == Grpo(epsilon=0.5)
    with pytest.raises(UsageError, match="use one of baseline, grpo"):
        make_advantage("gae")
    with pytest.raises(UsageError, match="epsilom"):
        make_advantage("grpo", {"epsilom": 1})
