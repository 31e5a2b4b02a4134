"""What a run of the matrix says: a line for each row as it ends, a table, and `report.json`. Pure.

A time has its limit where one process died and nothing else was in the way: takeovers of rows that killed owners alone, the way back of
trainers in rows that killed trainers alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

Status = Literal["passed", "failed", "skipped"]
COLOURS: dict[Status, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}


LIMITS = {"takeover_s": ("rollout", 6.0), "trainer_back_s": ("trainer", 15.0)}
"""By figure: the members of whose deaths it tells, and its limit in seconds. A trainer needs the time of its imports on top."""


@dataclass(frozen=True, slots=True)
class Result:
    """How one row ended. `reason` says why it failed or was skipped; `fired` what proves its fault. Seconds are None where not measured.

    `own_s`: the part of `takeover_s` until the partition was claimed. `sessions`: how many of the row's own were checked in the log.
    `killed`: members that died, in order. `parts_s`: where the row's time went.
    """

    fault: str
    tier: str
    status: Status
    reason: str = ""
    fired: str = ""
    stall_s: float | None = None
    sessions: int = 0
    lost: int = 0
    twice: int = 0
    takeover_s: float | None = None
    own_s: float | None = None
    trainer_back_s: float | None = None
    killed: tuple[str, ...] = ()
    parts_s: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0


def report(results: Sequence[Result], seed: int) -> dict[str, Any]:
    """`report.json`."""
    return {
        "rows": [asdict(result) for result in results],
        "lost": sum(result.lost for result in results),
        "twice": sum(result.twice for result in results),
        "seed": seed,
        **{f"{status}": sum(result.status == status for result in results) for status in COLOURS},
        **{figure: _longest(results, figure) for figure in LIMITS},
        "limits": {figure: limit_s for figure, (_, limit_s) in LIMITS.items()},
    }


def line(number: int, total: int, result: Result) -> str:
    """One row that ended, with rich's markup."""
    said = result.reason if result.status != "passed" else result.fired
    colour = COLOURS[result.status]
    return f"[{colour}]{result.status:8}[/] {number:2}/{total} {escape(result.fault)} [dim]({result.took_s:.0f} s)[/]: {escape(said)}"


def table(results: Sequence[Result]) -> Table:
    """All rows."""
    drawn = Table(title="Crash matrix", title_justify="left")
    for name in ("fault", "tier", "status"):
        drawn.add_column(name)
    for name in ("stall s", "takeover s", "trainer back s", "sessions", "lost", "twice"):
        drawn.add_column(name, justify="right")
    for result in results:
        drawn.add_row(
            escape(result.fault), result.tier, f"[{COLOURS[result.status]}]{result.status}[/]", _figure(result.stall_s),
            _figure(result.takeover_s), _figure(result.trainer_back_s), str(result.sessions or ""), str(result.lost), str(result.twice),
        )  # fmt: skip
    return drawn


def summary(results: Sequence[Result], took_s: float) -> str:
    """What happened in sum, with rich's markup; the figures that have limits; where the time went; why each row was skipped."""
    counts = Counter(result.status for result in results)
    lost, twice = sum(result.lost for result in results), sum(result.twice for result in results)
    said = f"{counts['passed']} rows passed, {counts['failed']} failed, {counts['skipped']} skipped; {lost} lost, {twice} twice"
    parts: Counter[str] = Counter()
    for result in results:
        parts.update(result.parts_s)
    spent = ", ".join(f"{part} {seconds:.0f} s" for part, seconds in parts.most_common())
    skipped = [f"skipped: {result.fault} ({result.tier}): {result.reason}" for result in results if result.status == "skipped"]
    limited = [_limited(results, figure) for figure in LIMITS]
    return "\n".join([said, *limited, f"took {took_s:.0f} s; in all rows: {spent}", *map(escape, skipped)])


def _limited(results: Sequence[Result], figure: str) -> str:
    """A figure with its limit."""
    member, limit_s = LIMITS[figure]
    longest = _longest(results, figure)
    if longest is None:
        return f"{figure}: no {member} died alone"
    colour = COLOURS["passed" if longest <= limit_s else "failed"]
    return f"{figure}: at most [{colour}]{longest:.1f}[/], the limit is {limit_s:.0f} s"


def _longest(results: Sequence[Result], figure: str) -> float | None:
    """The largest value of a figure in the rows to which its limit applies."""
    member, _ = LIMITS[figure]
    found = [getattr(each, figure) for each in results if each.killed and all(name.startswith(member) for name in each.killed)]
    return max((each for each in found if each is not None), default=None)


def _figure(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"
