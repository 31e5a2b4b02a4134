"""Figures from hand-worked samples."""

from __future__ import annotations

import os
import time

import pytest

from infra.bench.measure import Timing, cpu_time_s, quantile, ratio, rotated, stopwatch


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1.0), (0.25, 1.0), (0.26, 2.0), (0.5, 2.0), (0.75, 3.0), (0.99, 9.0), (1.0, 9.0)]
)
def test_a_quantile_is_the_smallest_value_that_the_share_does_not_exceed(share: float, expected: float) -> None:
    assert quantile([3.0, 1.0, 9.0, 2.0], share) == expected


def test_of_no_values_there_is_no_quantile() -> None:
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


def test_each_contender_goes_first_in_its_turn() -> None:
    assert [rotated("abc", number) for number in range(4)] == [list("abc"), list("bca"), list("cab"), list("abc")]


def test_a_ratio_below_one_is_slower_and_one_bad_round_changes_nothing() -> None:
    raw = [Timing(wall_s=1.0, cpu_s=0.5), Timing(wall_s=1.0, cpu_s=0.5), Timing(wall_s=90.0, cpu_s=0.5)]
    ours = [Timing(wall_s=2.0, cpu_s=0.25), Timing(wall_s=70.0, cpu_s=0.25), Timing(wall_s=2.0, cpu_s=0.25)]
    assert ratio(raw, ours, lambda timing: timing.wall_s) == 0.5
    assert ratio(raw, ours, lambda timing: timing.cpu_s) == 2.0


def test_a_stopwatch_tells_working_from_waiting() -> None:
    with stopwatch() as waiting:
        time.sleep(0.2)
    with stopwatch() as working:
        until = time.process_time() + 0.2
        while time.process_time() < until:
            pass
    assert waiting.wall_s >= 0.2 > waiting.cpu_s
    assert working.cpu_s >= 0.2


def test_cpu_time_of_a_process_only_grows_and_nobody_has_none() -> None:
    before_s = cpu_time_s(os.getpid())
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    assert cpu_time_s(os.getpid()) > before_s > 0.0
    assert cpu_time_s(2**30) == 0.0
