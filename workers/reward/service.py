"""The reward service: a member of the group `reward` on `trajectories` that writes one Score for each, in the same partition of `scores`.

Invariants:
- every trajectory gets a Score: a rule that raises anything, answers what is no verdict, or is slow and has none after `verdict_s`, makes a
  failed one with the reason, and the service goes on; so does, after counted deaths, one that ends its process, or a fast one that never
  returns (`workers.trials`);
- the committed offset never passes a trajectory whose Score is not acknowledged; a second Score after a restart is ignored by readers;
- no more than `concurrency` slow verdicts are sought at once; fast ones cost no task.
"""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import anyio
import structlog
from anyio.abc import TaskGroup, TaskStatus

from models.chat import Chat, load_chat
from schemas.score import Score
from schemas.topics import SCORES, TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.failpoint import failpoint
from streams.log import Log, RecordWriter
from streams.service import Role, Watch, came_from_outside
from streams.writer import Receipt, WriterOptions
from workers.intake import Intake, Item
from workers.plugin import PluginFailed, ask
from workers.reward.guard import Guard
from workers.reward.rule import RewardRule, checked, failure, is_slow, load_rule, score_of
from workers.reward.settings import RewardSettings

GROUP = "reward"
WRITER = WriterOptions(linger_ms=5, compress=True)
READ_S = 0.25
LEAVE_S = 8.0
KILLED = "the rule ended every process that scored this trajectory"

logger = structlog.get_logger()


def role(settings: RewardSettings) -> Role:
    """The reward role with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        rule, chat = load_rule(settings.rule), load_chat(settings.model_dir)
        guard = Guard(settings.verdict_s)
        async with log.writer(WRITER) as writer, log.join(TRAJECTORIES, GROUP) as member:
            scorer = Scorer(settings, rule, chat, writer, Intake(member), guard)
            task_status.started()
            logger.info("scoring", rule=rule.name, version=rule.version)
            try:
                with guard.awake():
                    await scorer.run()
            except BaseException as end:
                await scorer.leave(is_clean=came_from_outside(end))
                raise

    return run


class _Sent(NamedTuple):
    item: Item
    receipt: Receipt


@dataclass
class Scorer:
    """One member's share of the trajectories."""

    settings: RewardSettings
    rule: RewardRule
    chat: Chat
    writer: RecordWriter
    intake: Intake
    guard: Guard
    _sent: deque[_Sent] = field(default_factory=deque)
    _committed_at_s: float = 0.0

    def __post_init__(self) -> None:
        self._is_slow = is_slow(self.rule)
        self._free = anyio.Semaphore(self.settings.concurrency)

    async def run(self) -> None:
        """Read, score, commit. Slow verdicts are sought in tasks of their own."""
        async with anyio.create_task_group() as verdicts:
            while True:
                for item in await self._read():
                    await self._take(item, verdicts)
                if anyio.current_time() - self._committed_at_s >= self.settings.commit_s:
                    self._committed_at_s = anyio.current_time()
                    await self.commit()

    async def commit(self) -> None:
        """Pass what is acknowledged. The writer acknowledges in the order of sending, so the front of the queue tells."""
        while self._sent and self._sent[0].receipt.offset is not None:
            failpoint("reward.after_score")
            self._sent.popleft().item.done()
        await self.intake.commit()

    async def leave(self, *, is_clean: bool) -> None:
        """Commit what can be, at the end. `is_clean`: nothing that is scored now caused it."""
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self.writer.flush()
            await self.commit()
            if is_clean:
                await self.intake.leave()

    async def _read(self) -> list[Item]:
        """What can be taken up at once; none after a moment, so that what is done is committed meanwhile."""
        timeout_s = min(READ_S, self.settings.commit_s)
        if not self._is_slow:
            return await self.intake.read(timeout_s=timeout_s)
        with anyio.move_on_after(timeout_s):
            async with self._free:
                pass
        return await self.intake.read(timeout_s=timeout_s, limit=self._free.value) if self._free.value else []

    async def _take(self, item: Item, verdicts: TaskGroup) -> None:
        if not self._is_slow:
            await self._score(item)
            return
        await self._free.acquire()
        verdicts.start_soon(self._score_slowly, item)

    async def _score_slowly(self, item: Item) -> None:
        try:
            await self._score(item)
        finally:
            self._free.release()

    async def _score(self, item: Item) -> None:
        score = await self._judge(item)
        self._sent.append(_Sent(item, await self.writer.send(SCORES, item.entry.partition, score)))

    async def _judge(self, item: Item) -> Score:
        trajectory, offset = item.entry.record, item.entry.offset
        assert isinstance(trajectory, Trajectory)
        if item.is_poison:
            return await self._give_up(item, trajectory)
        try:
            return await ask(partial(self._seek, trajectory, offset), self.settings.verdict_s)
        except PluginFailed as failed:
            logger.warning("the rule failed", rule=self.rule.name, session=trajectory.session, error=str(failed))
            return failure(self.rule, offset, trajectory, str(failed))

    async def _give_up(self, item: Item, trajectory: Trajectory) -> Score:
        logger.error("a trajectory kills its rule", rule=self.rule.name, session=trajectory.session)
        await self.writer.log.bury_record(TRAJECTORIES, item.entry, f"poison: {KILLED}")
        return failure(self.rule, item.entry.offset, trajectory, KILLED)

    async def _seek(self, trajectory: Trajectory, offset: int) -> Score:
        with self.guard.over(f"rule {self.rule.name} on session {trajectory.session}"):
            found = self.rule.score(trajectory, self.chat)
        return score_of(self.rule, offset, trajectory, checked(await found if inspect.isawaitable(found) else found))
