"""Many schedules in several processes: what they came to, which faults struck, and which planted defects they caught.

Invariant: which schedules are played depends on the seed and their number alone, not on how many processes share them.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import NamedTuple, TypeVar

from tests.simulation.chance import hush
from tests.simulation.faults import SCENARIO_MARK, draw
from tests.simulation.mutations import SCENARIO_OF, planted
from tests.simulation.world import Outcome, play

T = TypeVar("T")

CHUNK = 25
ENOUGH_SEEDS = 2
"""So many seeds must catch a planted defect."""
COLLECTED_EACH = 25
"""Cycles are looked for after so many schedules (some 100 MB), and not within them."""


class Failure(NamedTuple):
    """A seed whose schedule broke something."""

    seed: str
    violations: list[str]


@dataclass
class Tally:
    """What schedules came to. `events` has one number a schedule."""

    events: list[int] = field(default_factory=list)
    struck: Counter[str] = field(default_factory=Counter)
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Take the others in."""
        self.events += other.events
        self.struck += other.struck
        self.failures += other.failures

    @property
    def median_events(self) -> float:
        """Half of the schedules have at least so many."""
        return statistics.median(self.events) if self.events else 0


class Caught(NamedTuple):
    """A planted defect: the seeds that caught it, among how many that were played, and what the first one saw."""

    name: str
    seeds: list[str]
    played: int
    saw: str


def seeds(seed: int, count: int, scenario: str = "") -> list[str]:
    """The schedules of a campaign, or of a hunt by a scenario."""
    return [f"{seed}.{number}{SCENARIO_MARK * bool(scenario)}{scenario}" for number in range(count)]


def play_all(names: Iterable[str]) -> Tally:
    """Play these schedules in this process."""
    tally = Tally()
    for outcome in _outcomes(names, with_audit=False):
        tally.events.append(outcome.events)
        tally.struck += outcome.struck
        if outcome.violations:
            tally.failures.append(Failure(outcome.seed, outcome.violations))
    return tally


def hunt(mutation: str, names: Iterable[str]) -> Caught:
    """Play schedules with a planted defect until enough of them have caught it."""
    found: list[Failure] = []
    played = 0
    with planted(mutation):
        for outcome in _outcomes(names, with_audit=True):
            played += 1
            if outcome.violations:
                found.append(Failure(outcome.seed, outcome.violations))
            if len(found) >= ENOUGH_SEEDS:
                break
    return Caught(mutation, [each.seed for each in found], played, found[0].violations[0] if found else "")


def campaign(names: Sequence[str], jobs: int) -> Iterator[Tally]:
    """Play schedules in `jobs` processes; a tally for each part that is done."""
    parts = [names[first : first + CHUNK] for first in range(0, len(names), CHUNK)]
    with _pool(jobs) as pool:
        yield from _results([pool.submit(play_all, part) for part in parts])


def hunts(mutations: Sequence[str], seed: int, count: int, jobs: int) -> Iterator[Caught]:
    """Hunt these defects in `jobs` processes, each in at most `count` schedules of its scenario."""
    with _pool(jobs) as pool:
        yield from _results([pool.submit(hunt, mutation, seeds(seed, count, SCENARIO_OF[mutation])) for mutation in mutations])


def shrink(seed: str, mutation: str | None = None, *, within_s: float = 60.0) -> list[int]:
    """The numbers of faults without which a failing schedule would not fail: one after another is left out."""
    kept = _faults(seed)
    until = time.monotonic() + within_s
    with planted(mutation):
        for number in list(kept):
            fewer = [each for each in kept if each != number]
            if time.monotonic() < until and play(seed, fewer, with_audit=True).violations:
                kept = fewer
    return kept


def prepare() -> None:
    """Make this process ready to play: no log lines, and no search for cycles while a schedule runs."""
    hush()
    gc.disable()
    gc.freeze()


def _outcomes(names: Iterable[str], *, with_audit: bool) -> Iterator[Outcome]:
    for number, name in enumerate(names, start=1):
        yield play(name, with_audit=with_audit)
        if number % COLLECTED_EACH == 0:
            gc.collect()


def _faults(seed: str) -> list[int]:
    return [fault.number for fault in draw(seed)]


def _pool(jobs: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=prepare)


def _results(futures: list[Future[T]]) -> Iterator[T]:
    for future in as_completed(futures):
        yield future.result()
