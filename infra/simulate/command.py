"""`seamlessflow simulate`: compare policies on a workload, in virtual time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import orjson
from cyclopts import Parameter, validators
from rich.console import Console
from rich.table import Table

from infra.simulate.compare import Comparison, calibrated, compare
from infra.simulate.figures import Interval
from infra.simulate.picture import Panel, picture
from infra.simulate.workload import Workload, load_workload, replaced
from schemas.errors import UsageError

SHOWN_STEPS = 6
"""So many steps of the slowest policy are in the picture."""
SHARES = {"bubble": "bubble", "bubble_train": "train", "bubble_rollout": "rollout", "dropped": "dropped"}
PLAIN = {"staleness": "stale", "reprefilled": "again"}
"""Figures of the table, and their heads: it is to fit into 80 columns."""


def simulate(
    scenario: str,
    /,
    *,
    seeds: Annotated[int, Parameter(validator=validators.Number(gte=1))] = 30,
    seed: int = 0,
    policy: Annotated[list[str] | None, Parameter(negative="")] = None,
    steps: Annotated[int | None, Parameter(validator=validators.Number(gte=1))] = None,
    nodes: Annotated[int | None, Parameter(validator=validators.Number(gte=2))] = None,
    json: Path | None = None,
    svg: Path | None = None,
) -> None:
    """Compare scheduling policies on a workload, in virtual time, with the scheduler's own decisions.

    Parameters
    ----------
    scenario
        single_turn, agentic, swe, heterogeneous, spot, or a TOML file.
    seeds
        Runs of each policy.
    seed
        The first seed.
    policy
        Compare these instead of the workload's: colocated_sync, static_N, one_off_N, async_N, async_partial_N, tags_ungated, tags.
    steps
        Measured steps of each run, instead of the workload's.
    nodes
        Nodes of the cluster, instead of the workload's; groups a step, partitions and training nodes grow with it.
    json
        Write all figures here: policies, name, figure, mean, low and high.
    svg
        Draw here who did what when in the first run of each policy.
    """
    workload = calibrated(_workload(scenario, policy, steps, nodes))
    console, begun_s = Console(soft_wrap=True, highlight=False), time.monotonic()
    console.print(_described(scenario, workload, seeds, seed))
    found = list(compare(workload, range(seed, seed + seeds), lambda name: console.print(f"  {name} …")))
    console.print(_table(found))
    console.print(f"{time.monotonic() - begun_s:.0f} s")
    if json is not None:
        _write(json, orjson.dumps(_as_json(scenario, workload, seeds, seed, found), option=orjson.OPT_INDENT_2))
    if svg is not None:
        _write(svg, _picture(scenario, found).encode())


def _described(scenario: str, workload: Workload, seeds: int, seed: int) -> str:
    cluster, session = workload.cluster, workload.session
    return (
        f"{scenario}: {cluster.nodes} nodes, {cluster.partitions} partitions, "
        f"{session.groups_per_step} groups of {session.members} a step; "
        f"sessions have {session.output_tokens.median:.0f} tokens (median), a step takes {workload.training.step_s:.0f} s on all nodes; "
        f"{workload.steps} steps after {workload.warm_up}, {seeds} seeds from {seed}"
    )


def _workload(scenario: str, policies: list[str] | None, steps: int | None, nodes: int | None) -> Workload:
    workload = load_workload(scenario)
    if policies:
        workload = replaced(workload, policies=tuple(policies))
    if steps is not None:
        workload = replaced(workload, steps=steps)
    return workload if nodes is None else _resized(workload, nodes)


def _resized(workload: Workload, nodes: int) -> Workload:
    """The same load a node. Splits that name a number keep it."""
    factor = nodes / workload.cluster.nodes
    return replaced(
        workload,
        cluster=replaced(workload.cluster, nodes=nodes, partitions=max(1, round(workload.cluster.partitions * factor))),
        session=replaced(workload.session, groups_per_step=max(1, round(workload.session.groups_per_step * factor))),
        training=replaced(workload.training, train_nodes=max(1, round(workload.training.train_nodes * factor))),
    )


def _table(found: list[Comparison]) -> Table:
    """The figures that matter most; all are in the JSON file."""
    table = Table(box=None, padding=(0, 1, 0, 0))
    for head in ("policy", "tokens/node-s", "step s", *SHARES.values(), *PLAIN.values()):
        table.add_column(head, no_wrap=True)
    for each in found:
        figures = each.figures
        exact = (_said(figures["tokens_per_node_second"]), f"{figures['step_s'].mean:.0f}")
        shares = (f"{figures[name].mean:.1%}" for name in SHARES)
        table.add_row(each.name, *exact, *shares, *(f"{figures[name].mean:.2f}" for name in PLAIN))
    return table


def _said(interval: Interval) -> str:
    return f"{interval.mean:.1f} ±{(interval.high - interval.low) / 2:.1f}"


def _as_json(scenario: str, workload: Workload, seeds: int, seed: int, found: list[Comparison]) -> dict[str, Any]:
    policies = {each.name: {name: interval._asdict() for name, interval in each.figures.items()} for each in found}
    return {"scenario": scenario, "seeds": seeds, "first_seed": seed, "workload": workload.model_dump(mode="json"), "policies": policies}


def _picture(scenario: str, found: list[Comparison]) -> str:
    """Each panel begins where its measured steps do."""
    span_s = SHOWN_STEPS * max(each.figures["step_s"].mean for each in found)
    panels = []
    for each in found:
        shift_s = each.first.opened_s
        nodes = {
            name: [stretch._replace(begin_s=stretch.begin_s - shift_s, end_s=stretch.end_s - shift_s) for stretch in stretches]
            for name, stretches in each.first.stretches.items()
        }
        panels.append(Panel(each.name, nodes, [row.end_s - shift_s for row in each.first.rows]))
    return picture(f"{scenario}: {span_s:.0f} s of each policy; lines are the ends of steps", panels, 0.0, span_s)


def _write(file: Path, content: bytes) -> None:
    try:
        file.write_bytes(content)
    except OSError as failure:
        raise UsageError(f"{file} cannot be written: {failure}") from failure
    print(f"wrote {file}")
