"""When the trainer dies, and what a demo of more than its default falls short of."""

from __future__ import annotations

from typing import Any

import pytest

from infra.demo.report import shortcomings
from infra.demo.story import trainer_deaths


@pytest.mark.parametrize(
    ("steps", "kills", "expected"), [(150, 1, [93]), (30, 1, [18]), (40, 2, [25, 32]), (40, 3, [25, 30, 35]), (40, 0, [])]
)
def test_the_trainer_dies_at_different_places(steps: int, kills: int, expected: list[int]) -> None:
    assert trainer_deaths(steps, kills) == expected


def report(**changes: object) -> dict[str, Any]:
    """Of a run in which all is well."""
    return {
        "audit_ok": True, "lost_requests": 0, "trained_twice": 0, "heldout_before": 0.2, "heldout_after": 0.8, "staleness_max": 3,
        "staleness_bound": 6, "resumed_requests": 5, "resumed_at_accepted_length": True, "takeover_s": 4.0, "trainer_kills": 1, **changes,
    }  # fmt: skip


def test_a_demo_in_which_all_is_well() -> None:
    assert shortcomings(report(), faults=True) == []
    assert shortcomings(report(trainer_kills=2, recomputed_equal=True, recomputed_versions=40), faults=True, trainer_kills=2) == []
    assert shortcomings(report(trainer_kills=0, takeover_s=None), faults=False) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"recomputed_equal": False}, "made again"), ({"trainer_kills": 1}, "killed 1 times"), ({"lost_requests": None}, "lost requests")],
)
def test_what_a_demo_falls_short_of(changes: dict[str, object], said: str) -> None:
    [line] = shortcomings(report(**{"trainer_kills": 2, **changes}), faults=True, trainer_kills=2)
    assert said in line
