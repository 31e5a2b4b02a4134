"""`seamlessflow audit verify`: read a log and say whether it is what a correct system writes.

Exit code 0: no violation. 1: violations, each listed with topic, partition and offset. A log that cannot be read: the error's own code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.status import Status
from rich.table import Table

from infra.audit.findings import RULES
from infra.audit.log import KafkaLog
from infra.audit.verify import Audit, AuditOptions, Verdict
from infra.broker.admin import require_reachable
from infra.cli.where import AS_SET, Where

SHOWN_VIOLATIONS = 50
"""Lines on the screen; the JSON file has them all."""


def verify(
    *,
    json: Annotated[Path | None, Parameter(help="Write the verdict with all figures to this file.")] = None,
    staleness_bound: Annotated[int | None, Parameter(help="The greatest allowed staleness of a step, in versions.")] = None,
    grace_s: Annotated[float, Parameter(help="A session that ended within this time may still wait for its trajectory.")] = 5.0,
    kill_ms: Annotated[
        tuple[int, ...], Parameter(negative="", help="When an owner was killed, ms since 1970; takeover times count from it.")
    ] = (),
    weights: Annotated[bool, Parameter(help="Read the files of all versions.")] = True,
    where: Where = AS_SET,
) -> int:
    """Check rules R1-R6, R8 and digests over the whole log; list every violation. Exit code 1 where there is one."""
    connection = where.connection()
    require_reachable(connection.address())
    options = AuditOptions(staleness_bound, round(grace_s * 1000), tuple(kill_ms), weights)
    verdict = audit_cluster(connection.address(), connection.namespace, options, Console(stderr=True))
    if json is not None:
        json.parent.mkdir(parents=True, exist_ok=True)
        json.write_bytes(orjson.dumps(verdict.as_json(), option=orjson.OPT_INDENT_2))
    show(verdict, Console())
    return 0 if verdict.audit_ok else 1


def audit_cluster(bootstrap: str, namespace: str, options: AuditOptions, progress: Console | None = None) -> Verdict:
    """Audit a cluster's log; progress lines go to `progress`, where given.

    :raises BrokerError: the log cannot be read.
    """
    console = progress or Console(quiet=True)
    with console.status("reading the log") as status, KafkaLog(bootstrap, namespace) as log:
        return Audit(log, options, lambda topic, count: _tell(status, topic, count)).run()


def show(verdict: Verdict, console: Console) -> None:
    """The table of rules, the figures, and the violations."""
    console.print(_rules(verdict))
    figures = verdict.figures
    versions = f"{verdict.versions} versions" + (f" ({verdict.versions_removed} without their files)" if verdict.versions_removed else "")
    console.print(
        f"{figures.sessions} sessions, {figures.ended} ended; {figures.requests} requests, {figures.lost_requests} without an end; "
        f"{figures.tokens} tokens; {verdict.trajectories} trajectories, {verdict.undecided} undecided"
    )
    console.print(
        f"{verdict.steps} steps, {versions}, {verdict.trained_tokens} tokens trained, {verdict.trained_twice} twice; "
        f"staleness at most {verdict.staleness_max}; dropped {verdict.dropped or 'none'}"
    )
    console.print(
        f"{len(figures.takeovers)} takeovers, {figures.resumed_requests} requests resumed, "
        f"at their accepted length: {figures.resumed_at_accepted_length}"
    )
    for reason, count in verdict.dead_letters.items():
        console.print(f"{count} dead letters of {reason}", markup=False)
    _list_expired(verdict, console)
    _list_violations(verdict, console)


def _list_expired(verdict: Verdict, console: Console) -> None:
    for gone in verdict.expired:
        console.print(f"expired: {gone.topic} {gone.partition} begins at {gone.first}", markup=False, highlight=False)
    for left, count in verdict.unproven:
        line = f"not proven: {left.rule} of {left.topic} {left.partition}: {left.text} ({count})"
        console.print(line, markup=False, soft_wrap=True, highlight=False)


def _rules(verdict: Verdict) -> Table:
    table = Table("rule", "what holds", "checked", "violations")
    for rule, text in RULES.items():
        found = sum(violation.rule == rule for violation in verdict.violations)
        table.add_row(rule, text, str(verdict.checked[rule]), f"[red]{found}[/red]" if found else "0")
    return table


def _list_violations(verdict: Verdict, console: Console) -> None:
    for violation in verdict.violations[:SHOWN_VIOLATIONS]:
        place = f"{violation.topic} {violation.partition} {violation.offset}"
        console.print(f"{violation.rule} at {place}: {violation.text}", markup=False, soft_wrap=True, highlight=False)
    left = len(verdict.violations) - SHOWN_VIOLATIONS
    if left > 0:
        console.print(f"… and {left} more: see --json")
    console.print(_sentence(verdict))


def _sentence(verdict: Verdict) -> str:
    if not verdict.audit_ok:
        return f"{len(verdict.violations)} violations"
    return "what is left of the log is what a correct system writes" if verdict.expired else "the log is what a correct system writes"


def _tell(status: Status, topic: str, count: int) -> None:
    status.update(f"reading {topic}: {count}" if count else f"reading {topic}")
