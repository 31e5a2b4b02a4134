"""`seamlessflow bench`: what the log costs on this machine. Goals stand beside figures; a slow machine is no error."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from infra.bench.calls import measure_calls
from infra.bench.measure import load_average
from infra.bench.report import Figures, lines, make_report
from infra.bench.stage import Tell, run, staged
from infra.bench.streams import measure_streams
from infra.bench.takeover import measure_takeover
from infra.bench.trajectories import measure_trajectories
from infra.cli.where import AS_SET, Where
from infra.crew.interrupt import signals_interrupt
from schemas.settings import Connection

RUN_DIR = Path("runs/bench")

Benchmark = Literal["streams", "calls", "trajectories", "takeover"]


def bench(
    *,
    only: Annotated[Benchmark | None, Parameter(help="Run one of the four.")] = None,
    quick: Annotated[bool, Parameter(help="Small sizes, one round: shows that everything works, measures nothing.")] = False,
    where: Where = AS_SET,
) -> int:
    """Measure streams, the call path, the trajectory pipeline and a takeover on this machine; writes report.json into the run folder.

    A local Kafka of its own runs meanwhile, unless an address is given; nothing is left running.
    """
    console, connection = Console(soft_wrap=True), _connection(where)
    figures = Figures(quick, load=[load_average()])
    with signals_interrupt(), staged(connection) as at:
        _run(figures, at, only, lambda line: console.print(line, highlight=False))
    figures.load.append(load_average())
    file = connection.run_dir / "report.json"
    file.write_text(json.dumps(make_report(figures), indent=2) + "\n", encoding="utf-8")
    console.print(_table(figures))
    console.print(f"load average {figures.load[0]:.1f} before, {figures.load[1]:.1f} after; {file}")
    return 0


def _run(figures: Figures, connection: Connection, only: Benchmark | None, tell: Tell) -> None:
    """Those asked for, one after the other."""
    if only in (None, "streams"):
        figures.streams = run(partial(measure_streams, connection.address(), tell, quick=figures.quick))
    if only in (None, "calls"):
        figures.calls = measure_calls(connection, tell, quick=figures.quick)
    if only in (None, "trajectories"):
        figures.trajectories = measure_trajectories(connection, tell, quick=figures.quick)
    if only in (None, "takeover"):
        figures.takeover = measure_takeover(connection, tell, quick=figures.quick)


def _connection(where: Where) -> Connection:
    """The given connection; benchmarks have a run folder of their own."""
    connection, sources = where.explained()
    return connection.model_copy(update={"run_dir": RUN_DIR}) if sources["run_dir"] == "default" else connection


def _table(figures: Figures) -> Table:
    table = Table("", "measured", "goal", "beside it", title="quick: no measurement" if figures.quick else None)
    for line in lines(figures):
        table.add_row(*line)
    return table
