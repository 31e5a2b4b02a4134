"""`seamlessflow audit recompute`: make the weights of every version again from the log, in a process of its own, and compare.

Exit code 0: equal, all of them. 1: different, though made by the same numerics. 3: made by other numerics, so that the bits cannot be
compared. 11: trajectories have expired, and what was asked for cannot be proven any more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import anyio
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from infra.audit.proof import Asked, Compared, Outcome, Report
from infra.broker.admin import require_reachable
from infra.cli.run import open_log
from infra.cli.where import AS_SET, Where
from schemas.errors import RetentionPassed, UsageError

EXIT_CODES: dict[Outcome, int] = {"equal": 0, "different": 1, "not comparable": 3, "unproven": RetentionPassed.exit_code}


def recompute(
    *,
    first: Annotated[int | None, Parameter(name="--from", help="First step to prove; default: as far back as it is possible.")] = None,
    last: Annotated[int | None, Parameter(name="--to", help="Last step; default: the last one in the log.")] = None,
    checkpoints: Annotated[Path | None, Parameter(help="Folder of checkpoints; default: as the run was set.")] = None,
    threads: Annotated[int | None, Parameter(help="Threads of torch; default: as many as each step was made with.")] = None,
    form: Annotated[Literal["json", "text"], Parameter(name=["-f", "--format"])] = "text",
    where: Where = AS_SET,
) -> int:
    """Make the weights of every version again from the log, and compare digests with it. Exit code 1: different; 3: other numerics.

    Begins at version 0, or at the newest checkpoint before --from; goes on from a checkpoint where trajectories have expired.
    """
    if threads is not None and threads < 1:
        raise UsageError(f"--threads {threads}: torch needs at least 1")
    connection = where.connection()
    require_reachable(connection.address())
    report = anyio.run(_recompute, connection.address(), connection.namespace, Asked(first or 1, last, checkpoints, threads))
    if form == "json":
        print(json.dumps(report.as_json()))
    else:
        show(report, Console())
    if first is not None and report.verdict == "equal" and report.unproven(first):
        return RetentionPassed.exit_code
    return EXIT_CODES[report.verdict]


async def _recompute(bootstrap: str, namespace: str, asked: Asked) -> Report:
    from infra.audit.recompute import recompute_log

    async with open_log(bootstrap, namespace, "audit") as log:
        with Console(stderr=True).status("reading training") as status:
            return await recompute_log(log, asked, lambda each, last: status.update(f"step {each.step} of {last}: {each.outcome}"))


def show(report: Report, console: Console) -> None:
    """What was compared, the first difference, and the verdict."""
    said, found = report.as_json(), report.first_difference
    table = Table("recomputed", "")
    table.add_row("begins at", f"step {report.start}, its checkpoint" if report.start else "version 0, its files as the log says")
    table.add_row("steps", f"{said['first']} to {said['last']}")
    table.add_row("versions equal", f"{said['versions_equal']} of {said['versions']}")
    if unproven := said["unproven"]:
        table.add_row("cannot be proven", f"{runs_of(unproven)}: trajectories, or what to start from, are gone")
    if found is not None:
        published = "not published" if found.version is None else f"version {found.version}"
        table.add_row("first difference", f"step {found.step}, {published}")
        table.add_row(f"digests, {found.what}", f"{found.expected_sha256[:16]}… there, {found.found_sha256[:16]}… here")
        table.add_row("largest difference", _distance(found))
    console.print(table)
    console.print(_verdict(report), highlight=False, soft_wrap=True, markup=False)


def _distance(found: Compared) -> str:
    if found.what == "optimizer":
        return "none in the weights"
    if found.max_difference is not None:
        return f"{found.max_difference:.3g}"
    return "unknown: not published" if found.version is None else "unknown: its files are gone"


def _verdict(report: Report) -> str:
    found = report.first_difference
    if found is None:
        return "equal, bit for bit" if report.verdict == "equal" else "nothing could be compared: expired, and no checkpoint is left"
    if found.outcome == "different":
        return f"DIFFERENT: step {found.step} gives another {found.what} digest under the same numerics"
    keys = ", ".join(f"{name} {there or 'unset'} there, {here or 'unset'} here" for name, (there, here) in found.numerics.items())
    return f"cannot be compared bit for bit from step {found.step} on: {keys}"


def runs_of(steps: list[int]) -> str:
    """Runs of numbers as `3-7, 9`."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1].append(step)
        else:
            runs.append([step])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
