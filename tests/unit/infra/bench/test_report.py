"""The report: names that programs rely on, null where nothing was measured, goals beside figures."""

from __future__ import annotations

import json

from infra.bench.calls import CallFigures, Side
from infra.bench.measure import Timing
from infra.bench.report import Figures, lines, make_report
from infra.bench.streams import Duel
from infra.bench.trajectories import Pipeline


def duel(raw_s: float, ours_s: float) -> Duel:
    return Duel(1000, [Timing(raw_s, 1.0)], [Timing(ours_s, 2.0)])


def call(logged_ms: list[float], direct_ms: list[float]) -> CallFigures:
    return CallFigures(Side(logged_ms, [500.0, 100.0, 400.0]), Side(direct_ms, [600.0]), {"gateway": 250.0})


FIGURES = Figures(
    quick=False,
    streams={"write_1k": duel(0.9, 1.0)},
    calls={1: call([53.0, 54.0], [50.0, 51.5]), 32: call([60.0, 90.0], [55.0, 58.0])},
    trajectories=Pipeline(planned=6000, plans=3, wall_s=2.0, cpu_s={"feed": 0.6}),
    load=[0.5, 1.5],
)


def test_the_report_says_what_was_measured() -> None:
    report = make_report(FIGURES)
    assert json.loads(json.dumps(report)) == report
    assert report["ratio"] == {"write_1k": 0.9}
    assert report["cpu_ratio"] == {"write_1k": 0.5}
    assert report["added_latency_ms"] == {"1": {"p50": 3.0, "p99": 2.5}, "32": {"p50": 5.0, "p99": 32.0}}
    assert report["calls_per_s"] == 400.0
    assert report["trajectories_per_s"] == 3000.0
    assert report["cpu_us_per_trajectory"] == {"feed": 100}
    assert report["load"] == [0.5, 1.5]


def test_what_was_not_measured_is_null() -> None:
    report = make_report(Figures(quick=True))
    assert [report[name] for name in ("ratio", "added_latency_ms", "calls_per_s", "trajectories_per_s")] == [None] * 4


def test_goals_stand_beside_the_figures_that_have_one() -> None:
    goals = {line.what: (line.measured, line.goal) for line in lines(FIGURES)}
    assert goals["write 1k, of raw aiokafka"] == ("0.90", "≥ 0.8")
    assert goals["the log adds to a call, 32 in flight, p50, ms"] == ("5.0", "≤ 8")
    assert goals["the log adds to a call, 32 in flight, p99, ms"] == ("32.0", "≤ 30")
    assert goals["the log adds to a call, 1 in flight, p50, ms"] == ("3.0", "")
    assert goals["trajectories a second"] == ("3,000", "≥ 3,000")
