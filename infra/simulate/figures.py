"""What a run is judged by, and how sure that is. Pure.

The formulas stand in `infra.simulate.formulas`; all figures are of the measured steps, without the warm-up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from infra.simulate.world import Run

__all__ = ["FIGURES", "Interval", "figures_of", "interval"]

CONFIDENCE = 0.95


class Interval(NamedTuple):
    """A mean over seeds, and where the mean of all seeds lies with 95 % confidence (Student's t)."""

    mean: float
    low: float
    high: float


def figures_of(run: Run, steps: int) -> dict[str, float]:
    """The figures of one run over its last `steps` steps."""
    rows = run.rows[-steps:]
    seconds = {mode: value - run.opened.seconds.get(mode, 0.0) for mode, value in run.closed.seconds.items() if mode != "gone"}
    nodes_s = sum(seconds.values())
    trained = sum(row.trained for row in rows)
    busy_s = run.closed.busy_s - run.opened.busy_s
    training_s, waiting_s, generating_s = (seconds.get(mode, 0.0) for mode in ("train", "ready", "rollout"))
    lost_s = run.closed.lost_work_s - run.opened.lost_work_s
    return {
        "tokens_per_node_second": trained / nodes_s,
        "step_s": (rows[-1].end_s - run.opened_s) / steps,
        "bubble": 1.0 - (busy_s + training_s) / nodes_s,
        "bubble_train": _share(waiting_s, waiting_s + training_s),
        "bubble_rollout": _share(generating_s - busy_s, generating_s),
        "switching": seconds.get("switch", 0.0) / nodes_s,
        "staleness": fmean(row.staleness for row in rows),
        "reprefilled": (run.closed.reprefilled - run.opened.reprefilled) / trained,
        "regenerated": (run.closed.regenerated - run.opened.regenerated) / trained,
        "dropped": sum(row.masked for row in rows) / trained,
        "switches": (run.closed.switches - run.opened.switches) / (steps * len(run.stretches)),
        "lost_work": lost_s / nodes_s,
    }


FIGURES = (
    "tokens_per_node_second", "step_s", "bubble", "bubble_train", "bubble_rollout", "switching", "staleness", "reprefilled", "regenerated",
    "dropped", "switches", "lost_work",
)
"""Their names, in the order of the table."""


def interval(values: Sequence[float]) -> Interval:
    """The mean and its 95 % interval. Of one value: that value."""
    mean = fmean(values)
    if len(values) < 2:
        return Interval(mean, mean, mean)
    half = student(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half)


def intervals(runs: Iterable[dict[str, float]]) -> dict[str, Interval]:
    """One interval a figure."""
    found = list(runs)
    return {name: interval([figures[name] for figures in found]) for name in FIGURES}


def student(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t: an expansion around the normal one, good to 0.002 from 6 degrees of freedom on."""
    z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0
