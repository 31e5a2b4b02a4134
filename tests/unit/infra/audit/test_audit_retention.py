"""What retention took of a correct log is said, by topic and partition, and is no violation; what is wrong in the rest still is."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_log import RawLog, complete_log
from rich.console import Console

from infra.audit.command import show
from infra.audit.findings import Expired, Unproven
from infra.audit.verify import Verdict

CUTS = {
    ("sessions", 0): 260, ("sessions", 1): 60, ("trajectories", 0): 50, ("trajectories", 1): 10, ("scores", 0): 30, ("scores", 1): 10,
    ("training", 0): 40, ("tasks", 0): 30,
}  # fmt: skip
"""Partitions of the complete log, and a place behind the end of each."""

FACTS = {0: [(0, "epoch=-1;"), (10, "epoch=0;"), (170, "epoch=30;"), (251, "epoch=30;")], 1: [(0, "epoch=-1;"), (51, "epoch=10;")]}
"""True Positions of both groups, by partition: at the first session's Open, between two sessions, at the end."""


def left(verdict: Verdict, topic: str, partition: int) -> set[tuple[str, str]]:
    return {(each.rule, each.text) for each, _ in verdict.unproven if (each.topic, each.partition) == (topic, partition)}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> RawLog:
    return complete_log(tmp_path_factory.mktemp("weights"))


def cut(log: RawLog, firsts: dict[tuple[str, int], int], commits: dict[str, dict[int, tuple[int, str]]] | None = None) -> RawLog:
    return RawLog(log.records, log.commits if commits is None else commits, firsts)


cuts = st.fixed_dictionaries({place: st.sampled_from([0, *range(5, end, 5), end]) for place in CUTS for end in [CUTS[place]]})
positions = st.fixed_dictionaries({
    group: st.fixed_dictionaries({}, optional={partition: st.sampled_from(facts) for partition, facts in FACTS.items()})
    for group in ("rollout", "assembler")
})


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(firsts=cuts, commits=positions)
def test_whatever_retention_takes_of_a_correct_log_is_no_violation(
    log: RawLog, firsts: dict[tuple[str, int], int], commits: dict[str, dict[int, tuple[int, str]]]
) -> None:
    verdict = cut(log, firsts, commits).audit(weights=False)
    assert verdict.violations == []
    gone = {(each.topic, each.partition): each.first for each in verdict.expired}
    assert gone == {place: first for place, first in firsts.items() if first}
    assert bool(verdict.unproven) == bool(verdict.expired)


def test_a_whole_log_leaves_nothing_unproven(log: RawLog) -> None:
    verdict = log.audit(weights=False)
    assert (verdict.expired, verdict.unproven) == ([], [])


def test_each_missing_beginning_says_what_it_takes_along(log: RawLog) -> None:
    firsts = {("sessions", 0): 100, ("trajectories", 0): 10, ("tasks", 0): 5}
    verdict = cut(log, firsts, {"rollout": {0: (180, "epoch=30;")}}).audit(weights=False)
    assert verdict.expired == [Expired("sessions", 0, 100), Expired("trajectories", 0, 10), Expired("tasks", 0, 5)]
    assert left(verdict, "sessions", 0) >= {("R5", "records below 180"), ("R2", "spans that are gone")}
    not_compared = Unproven("R6", "sessions", 0, "that a Trajectory is what its session's records say")
    assert (not_compared, 2) in verdict.unproven, "that of session 20, and the second one of session 10"
    assert ("R6", "that a Step or Drops record names a Trajectory that counts") in left(verdict, "trajectories", 0)
    assert left(verdict, "tasks", 0) == {("cas", "that Tasks are numbered without a gap")}


def test_without_a_position_and_a_reset_nothing_counts_and_that_is_said(log: RawLog) -> None:
    verdict = cut(log, {("sessions", 0): 100}, {}).audit(weights=False)
    assert verdict.violations == []
    assert ("R5", "anything: no Position is left, and no reset follows") in left(verdict, "sessions", 0)


def test_what_is_wrong_in_the_rest_is_still_found(tmp_path: Path) -> None:
    wrong = complete_log(tmp_path)
    wrong.at("trajectories", 0, 40)["outcome"] = "invented"
    verdict = cut(wrong, {("sessions", 0): 215, ("trajectories", 0): 30}, {"rollout": {0: (220, "epoch=30;")}}).audit(weights=False)
    assert [(found.rule, found.topic, found.offset) for found in verdict.violations] == [("R6", "trajectories", 40)]


def test_an_operator_reads_it_in_lines(log: RawLog) -> None:
    console = Console(file=io.StringIO(), width=140)
    show(cut(log, {("scores", 0): 10}).audit(weights=False), console)
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "expired: scores 0 begins at 10\n" in said
    assert "not proven: R6 of scores 0: which Score of a rule was the first (1)\n" in said
    assert "what is left of the log is what a correct system writes\n" in said
