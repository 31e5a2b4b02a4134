"""Runs rows: opens what each needs, lets it make its fault, waits until all work has ended, and checks the log.

Invariants:
- a row passes only if it says what proves its fault, nothing was lost or happened twice, and the audit finds nothing new;
- one pipeline stands at a time, shared by some rows of a scene; a row that fails, or that asks to be alone, leaves none behind;
- whatever ends this, Ctrl-C too, no process is left.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from infra.audit.verify import AuditOptions
from infra.broker.cluster import LocalKafka
from infra.crew.crew import Event
from schemas.errors import SetupError
from schemas.topics import SESSIONS
from tests.chaos.check import Counts, Ends, Slice, check_cluster
from tests.chaos.report import Result
from tests.chaos.row import Happened, Row, Skip
from tests.chaos.stage import Stage
from tests.chaos.tiers import TIERS
from tests.flow.agents import require_answers
from tests.flow.harness import Pipeline, colocated_pipeline, looping_pipeline, standing_pipeline
from tests.flow.seen import Seen, require_self_describing, watching

ROW_DEADLINE_S = 300.0
ROWS_A_PIPELINE = 6
"""A check reads the whole log, and a trainer that comes back makes all of its steps again: more rows would wait longer for both than for
new processes."""
GRACE_MS = 30_000
"""A closed loop never stands still: what refers to records as young as this may not be written yet."""
CHANGES: dict[str, dict[str, object]] = {
    "scheduler": {"tick_s": 1.0},
    "reward": {"rule": "tests.chaos.plugins:QuickCountRule"},
    "gateway": {"context_tokens": 262_144},
    "assembler": {"idle_s": 120},
}
"""How soon a death is noticed follows from the product's own settings, not from those of the flow tests; rewards need no time; agents that
call again after an outage do not find their sessions closed as idle."""
Results = Generator[Result, None, None]


@dataclass
class House:
    """One tier's cluster, and the pipeline that stands on it."""

    kafka: LocalKafka
    folder: Path
    tell: Callable[[Event], None]
    seed: int
    _scene: str = ""
    _stack: ExitStack = field(default_factory=ExitStack)
    _pipeline: Pipeline | None = None
    _known: Counts = field(default_factory=Counts)
    _opened: int = 0
    _played: int = 0

    def play(self, row: Row) -> Result:
        """One row, from its pipeline to its result."""
        began = time.monotonic()
        try:
            if row.is_alone or row.scene != self._scene or self._played == ROWS_A_PIPELINE:
                self.clear()
            self._played += 1
            result = anyio.run(self._run, row, self._standing(row))
        except Skip as reason:
            result = Result(row.fault, row.tier, "skipped", str(reason))
        except Exception as failure:  # whatever goes wrong in a row is said by its result, and the others are played
            result = Result(row.fault, row.tier, "failed", _said(failure))
        if row.is_alone or result.status == "failed":
            self.clear()
        took_s = round(time.monotonic() - began, 1)
        around_s = round(took_s - sum(result.parts_s.values()), 1)
        return replace(result, took_s=took_s, parts_s={**result.parts_s, "start and end": around_s})

    def clear(self) -> None:
        """End the pipeline that stands."""
        self._stack.close()
        self._stack, self._scene, self._pipeline, self._known, self._played = ExitStack(), "", None, Counts(), 0

    def _standing(self, row: Row) -> Pipeline | None:
        """The pipeline of this row's scene; opened where it does not stand."""
        if row.scene != "bare" and self._pipeline is None:
            self._opened += 1
            opened = {"calls": standing_pipeline, "loop": looping_pipeline, "roles": colocated_pipeline}[row.scene]
            run_dir = self.folder / f"{self._opened:02}-{row.scene}"
            self._pipeline = self._stack.enter_context(opened(self.kafka.bootstrap, run_dir, self.tell, **CHANGES))
            self._scene = row.scene
        return self._pipeline if row.scene != "bare" else None

    async def _run(self, row: Row, pipeline: Pipeline | None) -> Result:
        dice = random.Random(f"{self.seed} {row.fault}")
        stage = Stage(row, self.kafka, self.folder, dice, pipeline)
        with anyio.fail_after(ROW_DEADLINE_S):
            if pipeline is None:
                happened = await row.play(stage)
                stage.lap("play")
                return replace(judged(row, happened, None, Counts()), parts_s=stage.parts_s)
            return await self._on_pipeline(stage, pipeline)

    async def _on_pipeline(self, stage: Stage, pipeline: Pipeline) -> Result:
        await pipeline.come_home(without=stage.row.arms)
        stage.lap("home")
        stage.since = await ends_of(pipeline)
        async with watching(pipeline.log()) as seen:
            stage.reading = seen
            if stage.row.is_loop and stage.row.arms != "trainer":
                await seen.more_steps(1)
            happened = await stage.row.play(stage)
            stage.lap("play")
            marks = await ends_of(pipeline)
            unsettled = await settle(stage, seen)
            stage.lap("settle")
            for work in stage.works:
                require_answers(work, seen)
            require_self_describing(seen)
        told = frozenset((key.partition, key.offset) for work in stage.works for key in work.closed)
        counts = await self._count(stage, Slice(stage.since, marks, tuple(stage.kills), stage.row.is_loop, told))
        stage.lap("check")
        known, self._known = self._known, counts
        killed = tuple(kill.member for kill in stage.kills)
        result = replace(judged(stage.row, happened, counts, known), killed=killed, parts_s=stage.parts_s)
        return replace(result, status="failed", reason=f"{unsettled}; {result.reason}") if unsettled else result

    async def _count(self, stage: Stage, row: Slice) -> Counts:
        loop = stage.row.is_loop
        options = AuditOptions(
            weights=False, grace_ms=GRACE_MS if loop else 0, kills_ms=tuple(kill.at_ms for kill in stage.kills)
        )  # fmt: skip
        connection = stage.pipeline.connection
        job = partial(check_cluster, connection.address(), connection.namespace, row, options)
        return await anyio.to_thread.run_sync(job)


async def settle(stage: Stage, seen: Seen) -> str:
    """Wait until all work has ended that was begun by now; answers what never ended."""
    try:
        if stage.row.is_loop:
            await seen.more_steps(1)
            groups, sessions = seen.given_out(), seen.ended_training()
            await seen.until(lambda: groups <= seen.decided_groups(), "a decision on each group")
            await seen.until(lambda: sessions <= seen.decided_sessions(), "a decision on each session")
        else:
            await seen.until(lambda: not seen.unsettled(), "an end, a Trajectory and a Score of each session")
    except AssertionError as failure:
        return str(failure)
    return ""


def judged(row: Row, happened: Happened, counted: Counts | None, known: Counts) -> Result:
    """A row's result from what it saw and what the log says (None: it has no log but its own). `known`: what the log said before."""
    counts = counted or Counts()
    lost, twice = sorted(counts.lost - known.lost), sorted(counts.twice - known.twice)
    stall_s = happened.stall_s or counts.stall_s
    found = Result(
        row.fault, row.tier, "passed", fired=happened.fired, stall_s=stall_s, sessions=len(counts.done - known.done),
        lost=len(lost) + (happened.lost or 0), twice=len(twice) + (happened.twice or 0), takeover_s=counts.takeover_s,
        own_s=counts.own_s, trainer_back_s=counts.trainer_back_s,
    )  # fmt: skip
    broken = sorted(violation for violation in counts.violations - known.violations if violation.rule not in happened.allowed)
    reasons = [*_unproven(happened, found, counted is not None), *lost[:3], *twice[:3]]
    reasons += [f"{each.rule} at {each.topic} {each.partition}-{each.offset}: {each.text}" for each in broken[:3]]
    is_sound = not reasons and not found.lost and not found.twice
    return found if is_sound else replace(found, status="failed", reason="; ".join(reasons) or "lost or twice, as the row counted")


def _unproven(happened: Happened, found: Result, has_log: bool) -> list[str]:
    """What nothing shows: the fault, or that anything was counted after it."""
    reasons = []
    if not happened.fired or (found.stall_s or 0.0) < happened.least_stall_s:
        reasons.append(f"its fault never happened (longest silence {found.stall_s} s)")
    if not has_log and (happened.lost is None or happened.twice is None):
        reasons.append("the row counted nothing")
    if has_log and not found.sessions:
        reasons.append("no session came to its end: nothing was checked")
    return reasons


def run_rows(rows: Sequence[Row], folder: Path, seed: int, tell: Callable[[Event], None], begin: Callable[[Row], None]) -> Results:
    """Run rows, tier by tier and scene by scene; each result as soon as it is known.

    Closing the iterator ends every process.
    """
    for tier, opened in TIERS.items():
        of_tier = in_order([row for row in rows if row.tier == tier])
        if not of_tier:
            continue
        place = folder / tier.replace(" ", "-")
        with ExitStack() as stack:
            try:
                kafka = stack.enter_context(opened(place))
            except SetupError as missing:
                yield from (Result(row.fault, row.tier, "skipped", f"the tier does not start: {missing}") for row in of_tier)
                continue
            house = stack.enter_context(_house(kafka, place, tell, seed))
            for row in of_tier:
                begin(row)
                yield house.play(row)


def in_order(rows: Sequence[Row]) -> list[Row]:
    """Rows that share a pipeline stand together; those that want one of their own come last."""
    scenes = [*dict.fromkeys(row.scene for row in rows)]
    return sorted(rows, key=lambda row: (row.is_alone, scenes.index(row.scene)))


@contextmanager
def _house(kafka: LocalKafka, folder: Path, tell: Callable[[Event], None], seed: int) -> Iterator[House]:
    house = House(kafka, folder, tell, seed)
    try:
        yield house
    finally:
        house.clear()


async def ends_of(pipeline: Pipeline) -> Ends:
    """The end of each partition of `sessions` now."""
    log = pipeline.log()
    return {place.partition: end for place, end in (await log.broker.ends(await log.places(SESSIONS))).items()}


def _said(failure: BaseException) -> str:
    while isinstance(failure, BaseExceptionGroup):
        failure = failure.exceptions[0]
    return f"{type(failure).__name__}: {failure}".strip().rstrip(":")
