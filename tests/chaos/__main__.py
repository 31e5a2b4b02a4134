"""`python -m tests.chaos`: the crash matrix. `--rows TEXT` and `--tier TEXT` choose rows by a part of their names, `--seed N` the dice.

Progress and a table go to the screen, `report.json` into the run folder. Exit code 1 when a row failed; a time beyond its limit is printed
as such, for it depends on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from infra.broker.cluster import LocalKafka
from infra.crew.interrupt import signals_interrupt
from infra.crew.roll import end_crew
from schemas.settings import LOCAL_STATE
from tests.chaos.report import Result, line, report, summary, table
from tests.chaos.row import Row, all_rows
from tests.chaos.shares import play_shares, shares_of
from tests.chaos.tiers import TIERS

INTERRUPTED = 130
MOST_AT_ONCE = 4
"""More shares than this find no rows to play."""


def main() -> int:
    """Run the rows that were asked for."""
    options = _options()
    screen = Console(width=None if sys.stdout.isatty() else 160)
    rows = chosen(all_rows(), options.rows, options.tier)
    if not rows:
        screen.print("no row has such a name; there are:", *sorted(row.fault for row in all_rows()), sep="\n  ", markup=False)
        return 2
    if options.list:
        screen.print(*(f"{row.tier}: {row.fault}" for row in rows), sep="\n", markup=False)
        return 0
    prepare(options.folder)
    results: list[Result] = []
    interrupted, began = False, time.monotonic()
    try:
        with signals_interrupt():
            _play(rows, options, screen, results)
    except* KeyboardInterrupt:
        interrupted = True
    if interrupted:
        screen.print("interrupted: every process was ended")
        return INTERRUPTED
    screen.print(table(results), summary(results, time.monotonic() - began), sep="\n")
    screen.print(f"report: {options.folder / 'report.json'}; logs beside it")
    return int(any(result.status == "failed" for result in results))


def chosen(rows: Sequence[Row], name: str, tier: str) -> list[Row]:
    """Those whose name contains one of the texts in `name` (`A|B`), whose tier contains `tier`, and whose tier exists."""
    names = name.split("|")
    return [row for row in rows if any(each in row.fault for each in names) and tier in row.tier and row.tier in TIERS]


def prepare(folder: Path) -> None:
    """An empty run folder: whatever an earlier run left there is ended first."""
    for state in folder.glob(f"**/{LOCAL_STATE}"):
        LocalKafka(state.parents[len(LOCAL_STATE.parts) - 1]).stop()
    for pipeline in folder.glob("*/*/*/"):
        end_crew(pipeline)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _play(rows: Sequence[Row], options: argparse.Namespace, screen: Console, results: list[Result]) -> None:
    order = {row.fault: number for number, row in enumerate(rows)}
    with closing(play_shares(shares_of(rows), options.folder, options.seed, options.at_once)) as running:
        for result in running:
            results.append(result)
            screen.print(line(len(results), len(rows), result))
            results.sort(key=lambda each: order[each.fault])
            (options.folder / "report.json").write_text(json.dumps(report(results, options.seed), indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="The crash matrix: real faults on real processes.")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose fault contains TEXT; A|B: one of two")
    parser.add_argument("--tier", default="", metavar="TEXT", help=f"only tiers whose name contains TEXT: {', '.join(TIERS)}")
    parser.add_argument("--seed", type=int, default=0, help="decides when and whom a fault hits, where a row leaves it to chance")
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"), help="run folder; emptied first")
    at_once = min(os.cpu_count() or 1, MOST_AT_ONCE)
    parser.add_argument("--at-once", type=int, default=at_once, help="how many clusters may run rows at the same time")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
