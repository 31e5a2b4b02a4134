"""The matrix in shares, a few at a time. A share is a process with a cluster of its own: rows change their process's environment.

Invariants:
- each row is in one share, and has one result, whatever becomes of its process;
- closing the iterator ends every process of every share.
"""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path

from infra.crew.crew import Event
from infra.crew.interrupt import signals_interrupt
from tests.chaos.frame import run_rows
from tests.chaos.report import Result
from tests.chaos.row import Row

ALONE_WEIGHT = 2
"""A row that is alone starts all processes for itself, which takes as long as a row."""
GRACE_S = 90.0
JOURNAL = "events.log"


@dataclass(frozen=True, slots=True)
class Share:
    """Rows that share a cluster. `name` is its folder's."""

    name: str
    rows: tuple[Row, ...]

    @property
    def weight(self) -> int:
        """How long it takes, in rows."""
        return sum(ALONE_WEIGHT if row.is_alone else 1 for row in self.rows)


def shares_of(rows: Iterable[Row]) -> list[Share]:
    """Rows of one tier and scene together, those without a shared pipeline apart; the longest share first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        standing = "alone" if row.is_alone or row.scene == "bare" else row.scene
        found.setdefault(f"{row.tier}-{standing}".replace(" ", "-"), []).append(row)
    return sorted((Share(name, tuple(each)) for name, each in found.items()), key=lambda share: -share.weight)


@dataclass
class _Playing:
    """A share whose process runs."""

    share: Share
    process: SpawnProcess
    results: Connection
    missing: dict[str, Row] = field(default_factory=dict)

    def receive(self) -> Result | None:
        """Its next result; None when its process is through."""
        try:
            result: Result = self.results.recv()
        except EOFError:
            self.process.join()
            return None
        del self.missing[result.fault]
        return result

    def unplayed(self) -> Iterator[Result]:
        """Rows that have no result although the process is through."""
        for row in self.missing.values():
            yield Result(row.fault, row.tier, "failed", f"the process of its share ended with code {self.process.exitcode}")


def play_shares(shares: Sequence[Share], folder: Path, seed: int, at_once: int) -> Generator[Result, None, None]:
    """Play shares in their order, `at_once` of them at a time; each result as soon as it is known."""
    waiting, playing = list(shares), dict[Connection, _Playing]()
    try:
        while waiting or playing:
            while waiting and len(playing) < at_once:
                started = _start(waiting.pop(0), folder, seed)
                playing[started.results] = started
            for ready in wait(list(playing)):
                assert isinstance(ready, Connection)
                result = playing[ready].receive()
                yield from [result] if result else playing.pop(ready).unplayed()
    finally:
        _end([each.process for each in playing.values()])


def _start(share: Share, folder: Path, seed: int) -> _Playing:
    context = multiprocessing.get_context("spawn")
    results, said = context.Pipe(duplex=False)
    process = context.Process(target=_play, args=(share, folder / share.name, seed, said), name=share.name)
    process.start()
    said.close()  # so that the end of the process is the end of its results
    return _Playing(share, process, results, {row.fault: row for row in share.rows})


def _end(processes: Sequence[SpawnProcess]) -> None:
    """Each ends the processes that it started; one that does not come to it leaves them to the next run of this folder."""
    for process in processes:
        process.terminate()
    for process in processes:
        process.join(GRACE_S)
        process.kill()
        process.join()


def _play(share: Share, folder: Path, seed: int, results: Connection) -> None:
    """The process of a share."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # brokers that die are what this is about
    folder.mkdir(parents=True)

    def tell(event: Event) -> None:
        with (folder / JOURNAL).open("a") as handle:
            handle.write(f"{event.at_s:.3f} {event.member}: {event.what}\n")

    def begin(row: Row) -> None:
        tell(Event(0.0, "row", row.fault))

    try:
        with signals_interrupt(), closing(run_rows(share.rows, folder, seed, tell, begin)) as running:
            for result in running:
                results.send(result)
    except* KeyboardInterrupt:
        pass
