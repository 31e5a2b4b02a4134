"""What a run of the matrix says: a line for each row as it ends, a table, and `report.json`. Pure but for the screen it is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

Status = Literal["passed", "failed", "skipped"]
COLOURS: dict[Status, str] = {"passed": "green", "failed": "red", "skipped": "yellow"}


@dataclass(frozen=True, slots=True)
class Result:
    """How one row ended. `reason` says why it failed or was skipped; `fired` what proves its fault. Seconds are None where not measured."""

    fault: str
    tier: str
    status: Status
    reason: str = ""
    fired: str = ""
    stall_s: float | None = None
    lost: int = 0
    twice: int = 0
    takeover_s: float | None = None
    trainer_back_s: float | None = None
    took_s: float = 0.0


def report(results: Sequence[Result], seed: int) -> dict[str, Any]:
    """`report.json`."""
    return {
        "rows": [asdict(result) for result in results],
        "lost": sum(result.lost for result in results),
        "twice": sum(result.twice for result in results),
        "seed": seed,
        **{f"{status}": sum(result.status == status for result in results) for status in COLOURS},
        "takeover_s": _longest([result.takeover_s for result in results]),
        "trainer_back_s": _longest([result.trainer_back_s for result in results]),
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
    for name in ("stall s", "takeover s", "trainer back s", "lost", "twice"):
        drawn.add_column(name, justify="right")
    for result in results:
        drawn.add_row(
            escape(result.fault), result.tier, f"[{COLOURS[result.status]}]{result.status}[/]", _figure(result.stall_s),
            _figure(result.takeover_s), _figure(result.trainer_back_s), str(result.lost), str(result.twice),
        )  # fmt: skip
    return drawn


def summary(results: Sequence[Result]) -> str:
    """One sentence, and why each row was skipped."""
    counts = Counter(result.status for result in results)
    lost, twice = sum(result.lost for result in results), sum(result.twice for result in results)
    said = f"{counts['passed']} rows passed, {counts['failed']} failed, {counts['skipped']} skipped; {lost} lost, {twice} twice"
    skipped = [f"skipped: {result.fault} ({result.tier}): {result.reason}" for result in results if result.status == "skipped"]
    return "\n".join([said, *skipped])


def _longest(seconds: Sequence[float | None]) -> float | None:
    return max((each for each in seconds if each is not None), default=None)


def _figure(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.1f}"
