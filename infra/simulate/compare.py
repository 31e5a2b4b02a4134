"""Many runs: policies over seeds, after what the workload leaves to be measured was measured. Pure, besides what it reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import fmean
from typing import NamedTuple

from infra.simulate.figures import Interval, figures_of, intervals
from infra.simulate.policies import policy
from infra.simulate.workload import Workload, replaced
from infra.simulate.world import Run, World

__all__ = ["Comparison", "calibrated", "compare", "run_once"]

CALIBRATION_SEEDS = range(1000, 1008)
"""Not those of the comparison."""
CALIBRATION_ROUNDS = 4


class Comparison(NamedTuple):
    """The figures of one policy over all seeds, and its run with the first."""

    name: str
    figures: dict[str, Interval]
    first: Run


def compare(workload: Workload, seeds: range, told: Callable[[str], None] = lambda _: None) -> Iterator[Comparison]:
    """One policy of a calibrated workload after the other. `told` gets a line before each."""
    for name in workload.policies:
        told(name)
        first = run_once(workload, name, seeds[0])
        others = (figures_of(run_once(workload, name, seed), workload.steps) for seed in seeds[1:])
        yield Comparison(name, intervals([figures_of(first, workload.steps), *others]), first)


def run_once(workload: Workload, name: str, seed: int) -> Run:
    """One run.

    :raises UsageError: there is no such policy.
    :raises NoProgress: the workload never comes to its last step.
    """
    return World(workload, policy(name, workload), seed).run()


def calibrated(workload: Workload) -> Workload:
    """The workload with its output lengths and training time fixed, both by colocated synchronous runs with seeds of their own."""
    if workload.training.generation_s:
        workload = _scaled(workload)
    share = workload.training.share
    if not share:
        return workload
    return _with_step(workload, share / (1.0 - share) * _gather_s(workload))


def _scaled(workload: Workload) -> Workload:
    wanted = workload.training.generation_s
    for _ in range(CALIBRATION_ROUNDS):
        generation_s = _gather_s(workload) - workload.session.environment_s
        lengths = workload.session.output_tokens
        scaled = replaced(lengths, median=lengths.median * wanted / generation_s)
        workload = replaced(workload, session=replaced(workload.session, output_tokens=scaled))
    return workload


def _gather_s(workload: Workload) -> float:
    """From the start of a batch to its last session, where nothing else runs, and no node is lost."""
    calm = replaced(_with_step(workload, 1.0), cluster=replaced(workload.cluster, losses_per_node_hour=0.0), steps=2, warm_up=1)
    rows = [row for seed in CALIBRATION_SEEDS for row in run_once(calm, "colocated_sync", seed).rows]
    return fmean(row.gather_s for row in rows) - calm.training.sleep_s


def _with_step(workload: Workload, step_s: float) -> Workload:
    return replaced(workload, training=replaced(workload.training, step_s=step_s, share=0.0))
