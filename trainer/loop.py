"""The trainer's loop: a batch from the feed, an update, files, one transaction; and again.

Invariants:
- a Step and the WeightVersion that it publishes become visible together, after the version's files are complete (R8);
- whatever ends this loop between two commits, the next trainer decides and trains the same sessions again, from the last commit (R6, R7);
- a step runs only within the turn of this trainer (`trainer.turn`), and a wait for it is no beginning of the step;
- a step that ended too many trainers is not begun again: its batch is dropped (`trainer.attempts`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import anyio
import structlog

from schemas.errors import LogError
from schemas.training import Drops, Step, WeightVersion
from streams.cas import CasLog
from streams.failpoint import failpoint
from streams.service import Watch
from trainer.attempts import FATAL, Attempts, drops_of
from trainer.feed.plan import Batch
from trainer.recover import PARTITION, Standing
from trainer.trainee import Bench, Trained, Trainee
from trainer.turn import Turn

__all__ = ["Decider", "Loop"]

logger = structlog.get_logger()


class Decider(Protocol):
    """The feed as the loop sees it."""

    async def next(self, version: int) -> Batch | Drops:
        """Wait for the next decision: a batch to train from `version`, or drops that no batch followed in time."""
        ...

    def rest(self) -> list[Drops]:
        """All drops that were decided and not handed out, in the order in which they are to be written."""
        ...


@dataclass(slots=True)
class Loop:
    """One trainer's work, from where it stands to step `steps`. `recovery_s`: longest training time between two checkpoints;
    `keep_versions`: so many newest versions keep their files (0: all); `attempts` counts the beginnings of steps; `turn` says when
    one may begin."""

    feed: Decider
    trainee: Trainee
    bench: Bench
    cas: CasLog
    watch: Watch
    standing: Standing
    attempts: Attempts
    recovery_s: float
    keep_versions: int = 0
    turn: Turn = field(default_factory=Turn)
    unkept_s: float = 0.0

    async def run(self, steps: int) -> None:
        """Train until the log holds `steps` Steps.

        :raises Superseded: another trainer wrote: it goes on from what it wrote.
        """
        while self.standing.step < steps:
            began = anyio.current_time()
            decided = await self._decide()
            if isinstance(decided, Batch):
                async with self.turn.taken():
                    await self._try(decided, waited_s=anyio.current_time() - began)
            else:
                await self._commit(decided)
        for rest in self.feed.rest():
            await self._commit(rest)
        logger.info("all steps are in the log", steps=self.standing.step)

    async def _decide(self) -> Batch | Drops:
        """What the feed decides next. Tokens of a version that this trainer did not make are another one's work, or an error.

        :raises Superseded: another trainer wrote.
        :raises LogError: none did: nobody announced that version.
        """
        try:
            return await self.feed.next(self.standing.version)
        except LogError:
            await self.cas.require_newest()
            raise

    async def _try(self, batch: Batch, waited_s: float) -> None:
        """Count this beginning of the next step, and go on with it; after too many, give its batch up."""
        try:
            if await self.attempts.begin(self.standing.step + 1, self.standing.given_up) < FATAL:
                await self._step(batch, waited_s)
            else:
                await self._give_up(batch)
        except BaseException as end:
            await self.attempts.end(end)
            raise
        await self.attempts.end(None)

    async def _give_up(self, batch: Batch) -> None:
        """Letters first, or a crash loses them."""
        logger.error("a batch ended its trainers: dropped", step=self.standing.step + 1, sessions=len(batch.plan.places))
        await self.attempts.bury(batch)
        await self._commit(drops_of(batch))

    async def _step(self, batch: Batch, waited_s: float) -> None:
        failpoint("trainer.after_fetch")
        number, began = self.standing.step + 1, anyio.current_time()
        with self.watch.waiting_for(f"the update of step {number}"):
            trained = await self.bench.do(self.trainee.train, batch.plan, batch.trajectories)
        failpoint("trainer.after_update")
        updated = anyio.current_time()
        with self.watch.waiting_for(f"the files of step {number}"):
            published = await self.bench.do(self.trainee.publish, self.standing.version + 1, number)
        self.attempts.through()
        version = self.standing.announcing(published, self.keep_versions)
        failpoint("trainer.after_files")
        times_s = {"wait": waited_s, "update": updated - began, "publish": anyio.current_time() - updated}
        await self._commit(_step_record(number, batch, trained, version, times_s), version)
        failpoint("trainer.after_commit")
        logger.info("step", step=number, version=version.version, staleness=batch.staleness, reward=round(batch.reward_mean, 3))
        await self._keep(updated - began)
        await self._prune()

    async def _commit(self, *records: Step | Drops | WeightVersion) -> None:
        with self.watch.waiting_for("a commit to training"):
            await self.cas.write([(PARTITION, record) for record in records])
        for record in records:
            self.standing.apply(record)

    async def _keep(self, trained_s: float) -> None:
        self.unkept_s += trained_s
        if self.unkept_s >= self.recovery_s:
            with self.watch.waiting_for("a checkpoint"):
                await self.bench.do(self.trainee.keep, self.standing.step, self.standing.version, self.standing.in_force)
            self.unkept_s = 0.0

    async def _prune(self) -> None:
        """Remove files that the log, by now, says may be gone."""
        standing = self.standing
        if any(0 < version < standing.files_from for version in standing.files):
            with self.watch.waiting_for("old files to be removed"):
                removed = await self.bench.do(self.trainee.prune, standing.files, standing.files_from, standing.in_force)
            for version in removed:
                del standing.files[version]


def _step_record(number: int, batch: Batch, trained: Trained, version: WeightVersion, times_s: dict[str, float]) -> Step:
    figures = {"reward_mean": batch.reward_mean, "sessions": float(len(batch.plan.places)), "tokens": float(batch.trained_tokens)}
    times_ms = {f"{phase}_ms": time_s * 1e3 for phase, time_s in times_s.items()}
    return Step(
        step=number, version=batch.version, published=version.version, plan=batch.plan, drops=batch.drops, consumed=batch.consumed,
        groups_trained=batch.groups_trained, groups_dropped=batch.groups_dropped, trained_tokens=batch.trained_tokens,
        staleness=batch.staleness, weights_sha256=trained.weights_sha256, optimizer_sha256=trained.optimizer_sha256,
        numerics=trained.numerics, metrics={**trained.metrics, **figures, **times_ms},
    )  # fmt: skip
