"""`python -m tests.simulation`: play schedules, hunt planted defects, write `runs/simulation/report.json`, and say what was found.

    --schedules N --seed S --jobs J     a campaign of N schedules, then every planted defect
    --mutation NAME                     hunt this defect alone
    --replay SEED[:1,4,7]               play one schedule (with these faults alone) and print its journal

Exit code 1: a schedule broke something (each failing seed is shrunk and printed with the command that replays it), a planted defect was
not caught by two seeds, or the campaign was smaller than it promises.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from tests.simulation.campaign import ENOUGH_SEEDS, Caught, Tally, campaign, hunts, prepare, seeds, shrink
from tests.simulation.faults import KINDS
from tests.simulation.mutations import PATCHES, planted
from tests.simulation.world import play

REPORT = Path("runs/simulation/report.json")
FULL = 10_000
"""From so many schedules on, a campaign promises LEAST_STRIKES and LEAST_EVENTS."""
LEAST_STRIKES, LEAST_EVENTS = 500, 200
HUNT_SCHEDULES = 400
"""A planted defect that so many schedules do not catch counts as not caught."""
SHRUNK = 5
"""So many failing seeds are shrunk; the others are only named."""


def main() -> int:
    """Run what the arguments ask for; answers the exit code."""
    options = _options()
    prepare()
    if options.replay:
        return _replay(options.replay, options.mutation)
    tally = Tally() if options.mutation else _campaign(options)
    mutations = [options.mutation] if options.mutation else list(PATCHES) if options.mutations else []
    caught = _hunts(mutations, options)
    problems = _problems(tally, caught, full=len(tally.events) >= FULL)
    _write(tally, caught, options)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="Deterministic simulation of the whole pipeline.")
    parser.add_argument("--schedules", type=int, default=FULL, help="how many schedules to play")
    parser.add_argument("--seed", type=int, default=1, help="seed of the campaign")
    parser.add_argument("--jobs", type=int, default=2, help="processes that share the work")
    parser.add_argument("--replay", default="", metavar="SEED[:FAULTS]", help="play one schedule and print its journal")
    parser.add_argument("--mutation", default="", choices=["", *PATCHES], metavar="NAME", help="plant this defect; alone: hunt it")
    parser.add_argument("--no-mutations", dest="mutations", action="store_false", help="hunt no planted defects")
    return parser.parse_args()


def _replay(what: str, mutation: str) -> int:
    seed, _, kept = what.partition(":")
    with planted(mutation or None):
        outcome = play(seed, [int(number) for number in kept.split(",") if number] if kept else None, with_journal=True, with_audit=True)
    print(*outcome.journal, sep="\n")
    print(f"\n{outcome.events} events; {dict(outcome.struck)}")
    print(*(outcome.violations or ["nothing is broken"]), sep="\n")
    return 1 if outcome.violations else 0


def _campaign(options: argparse.Namespace) -> Tally:
    began, told, tally = time.monotonic(), time.monotonic(), Tally()
    for part in campaign(seeds(options.seed, options.schedules), options.jobs):
        tally.add(part)
        for failure in part.failures:
            print(f"failed: {failure.seed}: {failure.violations[0]}", flush=True)
        if time.monotonic() - told > 20:
            told = time.monotonic()
            print(f"{len(tally.events)} schedules after {told - began:.0f} s, {len(tally.failures)} failed", flush=True)
    took_s = time.monotonic() - began
    print(f"{len(tally.events)} schedules in {took_s:.0f} s, median {tally.median_events:.0f} events, {len(tally.failures)} failed")
    for kind in KINDS:
        print(f"  {kind:24} {tally.struck[kind]:8}")
    return tally


def _hunts(mutations: list[str], options: argparse.Namespace) -> list[Caught]:
    found: list[Caught] = []
    for caught in hunts(mutations, options.seed + 1, HUNT_SCHEDULES, options.jobs):
        found.append(caught)
        print(f"  {caught.name:48} {len(caught.seeds)} seeds of {caught.played:4}  {caught.saw[:100]}", flush=True)
    return found


def _problems(tally: Tally, caught: list[Caught], *, full: bool) -> list[str]:
    found = [f"{failure.seed}: {failure.violations[0]}" for failure in tally.failures]
    for failure in tally.failures[:SHRUNK]:
        kept = ",".join(map(str, shrink(failure.seed)))
        found.append(f"replay it with fewer faults: python -m tests.simulation --replay {failure.seed}:{kept}")
    found += [f"not caught: {each.name}" for each in caught if len(each.seeds) < ENOUGH_SEEDS]
    if full:
        rare = [kind for kind in KINDS if tally.struck[kind] < LEAST_STRIKES]
        found += [f"{kind} struck {tally.struck[kind]} times, fewer than {LEAST_STRIKES}" for kind in rare]
        if tally.median_events < LEAST_EVENTS:
            found.append(f"half of the schedules have fewer than {LEAST_EVENTS} events")
    return found


def _write(tally: Tally, caught: list[Caught], options: argparse.Namespace) -> None:
    report: dict[str, Any] = {
        "seed": options.seed, "schedules": len(tally.events), "median_events": tally.median_events,
        "faults": {kind: tally.struck[kind] for kind in KINDS},
        "failed": {failure.seed: failure.violations for failure in tally.failures},
        "mutations": {each.name: each.seeds for each in caught},
    }  # fmt: skip
    REPORT.parent.mkdir(parents=True, exist_ok=True)
    REPORT.write_bytes(orjson.dumps(report, option=orjson.OPT_INDENT_2))
    print(f"report: {REPORT}")


if __name__ == "__main__":
    sys.exit(main())
