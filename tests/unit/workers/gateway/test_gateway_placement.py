from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.gateway.admission import Admission
from workers.gateway.placement import place
from workers.gateway.problems import Problem


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(0, 1000), st.integers(0, 1000), st.integers(1, 64))
def test_members_of_a_group_share_a_partition_whoever_opens_them(group: int, one: int, other: int, partitions: int) -> None:
    assert place(group, one, partitions) == place(group, other, partitions) < partitions


def test_groups_spread() -> None:
    """1,600 groups on 16 partitions: a fair draw leaves each with 100, give or take four standard deviations (10 each)."""
    counts = Counter(place(group, 0, 16) for group in range(1600))
    assert len(counts) == 16
    assert all(60 < count < 140 for count in counts.values())


def test_the_place_of_a_group_is_the_same_after_every_restart() -> None:
    """CRC-32 of the text `123456789` is 0xCBF43926: the check value of its definition."""
    assert place(123456789, 0, 64) == 0xCBF43926 % 64 == 0x26


def test_sessions_without_a_group_go_round() -> None:
    assert [place(None, turn, 3) for turn in range(5)] == [0, 1, 2, 0, 1]


def test_a_loaded_partition_is_passed_over_unless_all_are() -> None:
    assert place(None, 1, 4, {1, 2}.__contains__) == 3
    assert place(None, 1, 4, lambda partition: True) == 1


def test_what_was_admitted_is_released() -> None:
    admission = Admission(max_calls=2, max_bytes=100)
    with admission.admit(60), pytest.raises(Problem) as caught, admission.admit(60):
        pass
    assert caught.value.status == 429
    assert (admission.calls, admission.size_bytes) == (0, 0)
    with admission.admit(1), admission.admit(1), pytest.raises(Problem), admission.admit(1):
        pass
    with admission.admit(1000):
        assert admission.calls == 1
