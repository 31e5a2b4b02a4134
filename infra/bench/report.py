"""What the benchmarks say: `report.json` for programs, rows with goals for people. Pure.

Invariants: a figure that was not measured is null; goals are said beside figures and decide nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from infra.bench.calls import CallFigures
from infra.bench.streams import Duel
from infra.bench.takeover import Takeovers
from infra.bench.trajectories import Pipeline

MANY = 32
"""Calls in flight at which goals are set."""
RATIO_GOAL, P50_GOAL_MS, P99_GOAL_MS, TRAJECTORIES_GOAL_PER_S = 0.8, 8.0, 30.0, 3_000


@dataclass(slots=True)
class Figures:
    """What was measured; `load` is the machine's load average before and after."""

    quick: bool
    streams: dict[str, Duel] = field(default_factory=dict)
    calls: dict[int, CallFigures] = field(default_factory=dict)
    trajectories: Pipeline | None = None
    takeover: Takeovers | None = None
    load: list[float] = field(default_factory=list)


class Line(NamedTuple):
    """One row of the table."""

    what: str
    measured: str
    goal: str
    beside: str


def make_report(figures: Figures) -> dict[str, Any]:
    """The content of `report.json`. Latencies in milliseconds, CPU time in microseconds."""
    many, pipeline = figures.calls.get(MANY), figures.trajectories
    return {
        "ratio": {name: _round(duel.ratio()) for name, duel in figures.streams.items()} or None,
        "cpu_ratio": {name: _round(duel.cpu_ratio()) for name, duel in figures.streams.items()} or None,
        "added_latency_ms": {str(number): _added(found) for number, found in figures.calls.items()} or None,
        "calls_per_s": _round(median(many.logged.rates)) if many else None,
        "calls_per_s_without_log": _round(median(many.direct.rates)) if many else None,
        "cpu_us_per_call": {name: round(each) for name, each in many.cpu_us.items()} if many else None,
        "trajectories_per_s": _round(pipeline.per_s) if pipeline else None,
        "cpu_us_per_trajectory": {name: round(each) for name, each in pipeline.cpu_us().items()} if pipeline else None,
        "takeover_s": {way: _round(figures.takeover.seconds(way)) for way in figures.takeover.timings} if figures.takeover else None,
        "load": figures.load,
        "quick": figures.quick,
    }


def lines(figures: Figures) -> Iterator[Line]:
    """The rows for people."""
    for name, duel in figures.streams.items():
        yield Line(
            f"{name.replace('_', ' ')}, of raw aiokafka", f"{duel.ratio():.2f}", f"≥ {RATIO_GOAL}",
            f"{_per_s(duel):,.0f} a second; by CPU time {duel.cpu_ratio():.2f}",
        )
    for number, found in figures.calls.items():
        yield from _call_lines(number, found)
    if figures.trajectories is not None:
        yield _pipeline_line(figures.trajectories)
    if figures.takeover is not None:
        yield _takeover_line(figures.takeover)


def _call_lines(number: int, found: CallFigures) -> Iterator[Line]:
    goals = {0.5: f"≤ {P50_GOAL_MS:.0f}", 0.99: f"≤ {P99_GOAL_MS:.0f}"} if number == MANY else {}
    for share in (0.5, 0.99):
        with_log, without = found.logged.ms(share), found.direct.ms(share)
        what = f"the log adds to a call, {number} in flight, p{share * 100:.0f}, ms"
        yield Line(what, f"{found.added_ms(share):.1f}", goals.get(share, ""), f"{with_log:.1f} with the log, {without:.1f} without")
    beside = f"{median(found.direct.rates):.0f} without the log; CPU µs: {_spent(found.cpu_us)}"
    yield Line(f"calls a second, {number} in flight", f"{median(found.logged.rates):.0f}", "", beside)


def _pipeline_line(pipeline: Pipeline) -> Line:
    beside = f"{pipeline.planned:,} in {pipeline.wall_s:.1f} s, {pipeline.plans} plans; CPU µs: {_spent(pipeline.cpu_us())}"
    return Line("trajectories a second", f"{pipeline.per_s:,.0f}", f"≥ {TRAJECTORIES_GOAL_PER_S:,}", beside)


def _takeover_line(found: Takeovers) -> Line:
    what = f"a partition of {found.shape.closed_bytes >> 20} MiB and {found.shape.open_sessions} open sessions is owned after, s"
    counts = " and ".join(f"{count:,}" for count in found.records.values())
    beside = f"{found.seconds('position'):.2f} from the Position, without a snapshot; {counts} records"
    return Line(what, f"{found.seconds('snapshot'):.2f}", "", beside)


def _spent(cpu_us: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {each:,.0f}" for name, each in cpu_us.items())


def _added(found: CallFigures) -> dict[str, float]:
    return {"p50": _round(found.added_ms(0.5)), "p99": _round(found.added_ms(0.99))}


def _per_s(duel: Duel) -> float:
    return duel.messages / median(timing.wall_s for timing in duel.ours)


def _round(value: float) -> float:
    return round(value, 2)
