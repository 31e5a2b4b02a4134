"""`python -m tests.chaos`: the crash matrix. `--rows TEXT` and `--tier TEXT` choose rows by a part of their names, `--seed N` the dice.

Progress and a table go to the screen, `report.json` into the run folder. Exit code 1 when a row failed.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from rich.console import Console

from infra.broker.cluster import LocalKafka
from infra.crew.crew import Event
from infra.crew.interrupt import signals_interrupt
from infra.crew.roll import end_crew
from schemas.settings import LOCAL_STATE
from tests.chaos.frame import run_rows
from tests.chaos.report import Result, line, report, summary, table
from tests.chaos.row import Row, all_rows
from tests.chaos.tiers import TIERS

INTERRUPTED = 130


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
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers that die are what this is about
    results: list[Result] = []
    interrupted = False
    try:
        with signals_interrupt():
            _play(rows, options, screen, results)
    except* KeyboardInterrupt:
        interrupted = True
    if interrupted:
        screen.print("interrupted: every process was ended")
        return INTERRUPTED
    screen.print(table(results), summary(results), f"report: {options.folder / 'report.json'}; logs beside it", sep="\n")
    return int(any(result.status == "failed" for result in results))


def chosen(rows: Sequence[Row], name: str, tier: str) -> list[Row]:
    """Those whose name contains one of the texts in `name` (`A|B`), whose tier contains `tier`, and whose tier exists."""
    names = name.split("|")
    return [row for row in rows if any(each in row.fault for each in names) and tier in row.tier and row.tier in TIERS]


def prepare(folder: Path) -> None:
    """An empty run folder: whatever an earlier run left there is ended first."""
    for state in folder.glob(f"*/{LOCAL_STATE}"):
        LocalKafka(state.parents[1]).stop()
    for pipeline in folder.glob("*/*/"):
        end_crew(pipeline)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def _play(rows: Sequence[Row], options: argparse.Namespace, screen: Console, results: list[Result]) -> None:
    journal = options.folder / "events.log"

    def tell(event: Event) -> None:
        with journal.open("a") as handle:
            handle.write(f"{event.at_s:.3f} {event.member}: {event.what}\n")

    def begin(row: Row) -> None:
        tell(Event(0.0, "row", row.fault))

    with closing(run_rows(rows, options.folder, options.seed, tell, begin)) as running:
        for result in running:
            results.append(result)
            screen.print(line(len(results), len(rows), result))
            (options.folder / "report.json").write_text(json.dumps(report(results, options.seed), indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="The crash matrix: real faults on real processes.")
    parser.add_argument("--rows", default="", metavar="TEXT", help="only rows whose fault contains TEXT; A|B: one of two")
    parser.add_argument("--tier", default="", metavar="TEXT", help=f"only tiers whose name contains TEXT: {', '.join(TIERS)}")
    parser.add_argument("--seed", type=int, default=0, help="decides when and whom a fault hits, where a row leaves it to chance")
    parser.add_argument("--folder", type=Path, default=Path("runs/chaos"), help="run folder; emptied first")
    parser.add_argument("--list", action="store_true", help="list the rows and end")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
