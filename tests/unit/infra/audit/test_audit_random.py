"""Whatever zombies and resends add to a correct log, the audit reads the same; whatever is taken from it, it notices."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest
from raw_log import EPOCH_A, RawLog, Where, complete_log, span

SEEDS = range(40)
COUNTED_SPANS = (90, 100, 110, 130, 200)
"""Of epoch 30 in partition 0."""


def free_offset(log: RawLog, random_: random.Random, above: int) -> int:
    """A place that no record takes, after `above`; before 250, so that the Positions stand."""
    return random_.choice([offset for offset in range(above + 1, 250) if ("sessions", 0, offset) not in log.records])


def add_noise(log: RawLog, random_: random.Random) -> None:
    """One record that does not count: an old owner's, or an exact copy of one that was read before."""
    if random_.random() < 0.3:
        tokens = [random_.randrange(100) for _ in range(random_.randint(1, 3))]
        fields = {"type": "Span", **span(10, 30, EPOCH_A, random_.randrange(6), tokens)}
        log.put_fields(("sessions", 0, free_offset(log, random_, above=70)), fields)
        return
    copied = random_.choice([30, 50, 120, 140, 150, 160, *COUNTED_SPANS])
    log.put_fields(("sessions", 0, free_offset(log, random_, above=copied)), copy.deepcopy(log.at("sessions", 0, copied)))


@pytest.mark.parametrize("seed", SEEDS)
def test_noise_changes_nothing(seed: int, tmp_path: Path) -> None:
    random_, log = random.Random(seed), complete_log(tmp_path)
    noise = random_.randint(1, 30)
    for _ in range(noise):
        add_noise(log, random_)
    verdict = log.audit(weights=False)
    assert verdict.violations == []
    assert sum(verdict.figures.ignored.values()) == noise + 2
    assert (verdict.figures.tokens, verdict.trained_tokens, verdict.figures.resumed_requests) == (14, 11, 2)


def indispensable(log: RawLog) -> list[Where]:
    """Records without which the rest cannot be. Not: a Grant that compaction or first records that retention may have taken, the late
    span, the repeated Claim, a Trajectory's second copy, Scores, the Run, the last Task."""
    taken_by_the_broker = {("grants", 0, 0), ("sessions", 0, 0), ("sessions", 1, 0)}
    spare = {*taken_by_the_broker, ("sessions", 0, 80), ("sessions", 0, 250), ("trajectories", 0, 20), ("training", 0, 0), ("tasks", 3, 40)}
    return [where for where in log.records if where not in spare and where[0] != "scores"]


def test_no_record_can_be_taken_away(tmp_path: Path) -> None:
    unnoticed = []
    for where in indispensable(complete_log(tmp_path)):
        log = complete_log(tmp_path)
        del log.records[where]
        unnoticed += [where] if log.audit(weights=False).audit_ok else []
    assert unnoticed == []
