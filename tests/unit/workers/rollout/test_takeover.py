"""The two halves of a takeover, by hand-set clocks."""

from __future__ import annotations

from workers.rollout.takeover import TakeoverClock


def test_the_slowest_partition_counts_in_both_halves() -> None:
    clock = TakeoverClock()
    clock.taken([0, 1], 10.0)
    assert clock.owned(0, 10.5, unfinished=2) == 0.5
    assert clock.owned(1, 12.0, unfinished=1) == 2.0
    assert clock.sampled(0, 11.25) == 0.75
    assert clock.sampled(0, 11.5) is None, "only the first"
    assert clock.sampled(1, 12.25) == 0.25
    assert (clock.own_s, clock.first_token_s) == (2.0, 0.75)


def test_where_nothing_waited_the_first_token_says_nothing_of_the_takeover() -> None:
    clock = TakeoverClock()
    clock.taken([0], 10.0)
    clock.owned(0, 10.5, unfinished=0)
    assert clock.sampled(0, 99.0) is None
    assert clock.first_token_s == 0.0


def test_another_taking_begins_anew_and_a_lost_partition_is_forgotten() -> None:
    clock = TakeoverClock()
    clock.taken([0], 10.0)
    clock.owned(0, 13.0, unfinished=1)
    clock.gone(0)
    assert clock.sampled(0, 14.0) is None
    clock.taken([1], 20.0)
    assert (clock.own_s, clock.first_token_s) == (0.0, 0.0)
