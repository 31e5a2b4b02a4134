"""`seamlessflow demo`: everything real, on one machine, in a few minutes; and the proof of it.

A local Kafka, a gateway, assembler, reward, source, scheduler, two rollout workers, a trainer and agents, each a process of its own. In
mid-run a worker and the trainer are killed. At the end the log is audited, and `report.json` says what was measured.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter
from rich.console import Console

from infra.audit.command import audit_cluster
from infra.audit.verify import AuditOptions, Verdict
from infra.cli.where import AS_SET, Where
from infra.demo.cast import TRAINED_STALENESS_BOUND, Layout, Plan
from infra.demo.ending import print_ending
from infra.demo.performance import Performance
from infra.demo.proof import Proof, prove
from infra.demo.report import Run, make_report, shortcomings, write_report
from infra.demo.stage import prepare
from infra.demo.view import open_view
from schemas.errors import UsageError
from schemas.settings import Connection

RUN_DIR = Path("runs/demo")
SETUP_VARIABLE = "SEAMLESSFLOW_SETUP_S"
"""Seconds that `make` spent on downloads before this process began."""


def demo(
    *,
    steps: Annotated[int, Parameter(help="Training steps.")] = 150,
    seed: Annotated[int, Parameter(help="Seed of words, model and sampling.")] = 0,
    turns: Annotated[Literal[1, 2], Parameter(help="2: a wrong answer may be mended.")] = 1,
    faults: Annotated[bool, Parameter(help="Kill a rollout worker and the trainer in mid-run.")] = True,
    trainer_kills: Annotated[int, Parameter(help="How often the trainer is killed (with --faults).")] = 1,
    recompute: Annotated[bool, Parameter(negative="", help="At the end, make all weights again in another process.")] = False,
    layout: Annotated[
        Layout, Parameter(help="Where the trainer steps: on a node of its own, or by turns on both rollout nodes, or on one of them.")
    ] = "disaggregated",
    plain: Annotated[bool, Parameter(help="Lines instead of a live screen.")] = False,
    where: Where = AS_SET,
) -> int:
    """Train a small model from agent episodes, everything through Kafka, with faults; then audit the log. Exit code 1: something was lost.

    The data of an earlier demo in the run folder is removed. Kafka stays for `tail`, `status` and `audit`, until `seamlessflow down`.
    """
    if trainer_kills < 0 or steps < 1:
        raise UsageError(f"--trainer-kills {trainer_kills}, --steps {steps}: kills from 0, steps from 1 on")
    began_s, console = time.monotonic(), Console()
    asked = _connection(where)
    plan = Plan(asked.run_dir, steps, seed, turns, layout)
    connection = prepare(asked, plan)
    with open_view(console, plain=plain) as view:
        performance = Performance(connection, plan, faults, trainer_kills, view)
        prepared_s = time.monotonic() - began_s
        performance.run()
    verdict, evaluations = _audit(performance, connection, console), performance.observer.evaluations
    run = _run(performance, time.monotonic() - began_s, prepared_s)
    report = make_report(run, verdict, evaluations, performance.told, _prove(performance, verdict, console) if recompute else None)
    write_report(plan.run_dir / "report.json", report)
    print_ending(console, report, evaluations, plan, connection, own_kafka=asked.bootstrap is None)
    lines = shortcomings(report, faults=faults, trainer_kills=trainer_kills)
    for line in lines:
        console.print(f"FALLS SHORT: {line}")
    return 1 if lines else 0


def _connection(where: Where) -> Connection:
    """The given connection; the demo has a run folder of its own."""
    connection, sources = where.explained()
    return connection.model_copy(update={"run_dir": RUN_DIR}) if sources["run_dir"] == "default" else connection


def _audit(performance: Performance, connection: Connection, console: Console) -> Verdict:
    options = AuditOptions(TRAINED_STALENESS_BOUND, grace_ms=5000, kills_ms=tuple(performance.told.kills_ms))
    console.print("auditing the log …")
    return audit_cluster(connection.address(), connection.namespace, options, console)


def _prove(performance: Performance, verdict: Verdict, console: Console) -> Proof:
    console.print("making the weights of all versions again …")
    return prove(performance.connection, performance.plan, verdict.versions - 1)


def _run(performance: Performance, wall_s: float, prepared_s: float) -> Run:
    plan = performance.plan
    return Run(
        steps=plan.steps, seed=plan.seed, staleness_bound=TRAINED_STALENESS_BOUND, wall_s=wall_s,
        setup_s=float(os.environ.get(SETUP_VARIABLE, "0")) + prepared_s + performance.ready_s,
        added_ms=performance.added_ms, agent_errors=performance.agent_errors(),
    )  # fmt: skip
