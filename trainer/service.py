"""The trainer as a role: it recovers, opens the feed, runs the loop, and says that it lives. It ends by itself when all steps are done."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.abc import TaskStatus

from schemas.node import NodeStatus, State
from schemas.topics import NODES, TRAINING
from streams.cas import open_cas
from streams.log import Log, RecordWriter
from streams.service import Finished, Role, Watch
from trainer.attempts import Attempts
from trainer.loop import Loop
from trainer.reading import LiveFeed, open_feed
from trainer.recover import Standing, recover
from trainer.settings import TrainerSettings
from trainer.trainee import Bench, Trainee
from trainer.turn import Turn, open_turn

__all__ = ["role", "torch_trainee"]

LEAVE_S = 3.0

logger = structlog.get_logger()

MakeTrainee = Callable[[TrainerSettings], Trainee]


def torch_trainee(settings: TrainerSettings) -> Trainee:
    """The model of the settings. Imports torch where it is called: in the thread that trains."""
    from trainer.learning import TorchTrainee

    return TorchTrainee(settings)


def role(settings: TrainerSettings, make_trainee: MakeTrainee = torch_trainee, make_bench: Callable[[], Bench] = Bench) -> Role:
    """The trainer with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> Finished:
        bench = make_bench()
        async with (
            open_cas(log, TRAINING) as cas, log.writer() as writer, open_turn(log, settings.hosts) as turn,
            anyio.create_task_group() as tasks,
        ):  # fmt: skip
            node = Node(settings, writer, bench, turn)
            tasks.start_soon(node.report)
            try:
                trainee = await bench.do(make_trainee, settings)
                standing = await recover(log, cas, trainee, bench, settings)
                node.standing = standing
                logger.info("standing", step=standing.step, version=standing.version, steps=settings.steps)
                async with open_feed(log, settings.feed, settings.held_bytes, standing.consumed) as feed:
                    node.feed = feed
                    task_status.started()
                    attempts = Attempts(log, watch)
                    tasks.start_soon(attempts.take_back_when_stopped)
                    loop = Loop(feed, trainee, bench, cas, watch, standing, attempts, settings.recovery_s, settings.keep_versions, turn)
                    await loop.run(settings.steps)
            finally:
                tasks.cancel_scope.cancel()
                await node.leave()
        return "finished"

    return run


@dataclass(slots=True)
class Node:
    """What the trainer says of itself in `nodes`. `standing` and `feed` are None while it recovers."""

    settings: TrainerSettings
    writer: RecordWriter
    bench: Bench
    turn: Turn
    standing: Standing | None = None
    feed: LiveFeed | None = None
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))

    async def report(self) -> None:
        """Say about once in `report_s` that this process lives; at once, where the scheduler waits for its word."""
        while True:
            changed = self.turn.changed
            await self._say(self._state())
            with anyio.move_on_after(self.settings.report_s):
                await (changed.wait() if self.settings.hosts else anyio.sleep_forever())

    async def leave(self) -> None:
        """The last word; a broker that is away does not hold up the end."""
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._say("left")
            await self.writer.flush()

    def _state(self) -> State:
        if self.standing is None:
            return "loading"
        return "training" if self.turn.is_stepping or self.bench.is_busy else "serving"

    @property
    def _ready_groups(self) -> int:
        """Complete groups without a step: those of the batch that waits for its turn, and those behind it."""
        if self.feed is None or not self.settings.hosts:
            return 0
        behind = self.feed.ready_groups
        return behind + (self.settings.feed.groups_per_step if self.turn.is_waiting else 0)

    async def _say(self, state: State) -> None:
        version = -1 if self.standing is None else self.standing.version
        status = NodeStatus(
            node=self.settings.node, incarnation=self.incarnation, tags=[] if self.settings.hosts else ["train"], state=state,
            version=version, hosts=self.settings.hosts, grants_seen=self.turn.seen, ready_groups=self._ready_groups, detail=self.turn.cause,
        )  # fmt: skip
        await self.writer.send(NODES, 0, status)
