"""The simulation itself: a seed is a schedule, some schedules hold, and a planted defect is caught. `make simulation` plays thousands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog

from tests.simulation import faults
from tests.simulation.campaign import hunt, play_all, seeds
from tests.simulation.chance import hush
from tests.simulation.mutations import PATCHES, SCENARIO_OF
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.world import play

SMOKE = 12


@pytest.fixture(autouse=True)
def _hushed() -> Iterator[None]:
    hush()
    yield
    structlog.reset_defaults()


def test_a_seed_replays_to_the_last_byte() -> None:
    first, again = (play("replay.1", with_journal=True) for _ in range(2))
    assert len(first.journal) > 100
    assert "\n".join(first.journal).encode() == "\n".join(again.journal).encode()


def test_another_seed_is_another_schedule() -> None:
    assert play("replay.2", with_journal=True).journal != play("replay.3", with_journal=True).journal


def test_faults_can_be_left_out() -> None:
    drawn = faults.draw("replay.1")
    assert drawn == faults.draw("replay.1")
    calm = play("replay.1", kept=[])
    assert set(calm.struck) <= {"agent cancels", "agent fails"}
    assert not calm.violations


def test_a_scenario_is_named_by_the_seed_and_its_faults_are_among_the_others() -> None:
    assert seeds(3, 2, "late close") == ["3.0~late close", "3.1~late close"]
    drawn = faults.draw("3.0~late close")
    assert drawn == faults.draw("3.0~late close") != faults.draw("3.1~late close")
    assert [fault.number for fault in drawn] == list(range(len(drawn)))
    assert {(fault.kind, fault.target) for fault in drawn} >= {("reads stale", "assembler"), ("freeze", "rollout-0")}


def test_each_planted_defect_is_hunted_by_a_scenario_of_faults_that_there_are() -> None:
    assert SCENARIO_OF.keys() == PATCHES.keys()
    assert set(SCENARIO_OF.values()) <= SCENARIOS.keys()
    assert {fault.kind for scenario in SCENARIOS.values() for fault in scenario} <= set(faults.WEIGHTS)


def test_schedules_hold() -> None:
    tally = play_all(seeds(7, SMOKE))
    assert not tally.failures, f"replay it: python -m tests.simulation --replay {tally.failures[0].seed}"
    assert len(tally.struck) > 15
    assert tally.median_events > 150


def test_a_planted_defect_is_caught() -> None:
    defect = "nonces are not compared"
    caught = hunt(defect, seeds(2, 60, SCENARIO_OF[defect]))
    assert len(caught.seeds) == 2
