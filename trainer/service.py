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
from trainer.reading import open_feed
from trainer.recover import Standing, recover
from trainer.settings import TrainerSettings
from trainer.trainee import Bench, Trainee

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
        async with open_cas(log, TRAINING) as cas, log.writer() as writer, anyio.create_task_group() as tasks:
            node = Node(settings, writer, bench)
            tasks.start_soon(node.report)
            try:
                trainee = await bench.do(make_trainee, settings)
                standing = await recover(log, cas, trainee, bench, settings)
                node.standing = standing
                logger.info("standing", step=standing.step, version=standing.version, steps=settings.steps)
                async with open_feed(log, settings.feed, settings.held_bytes, standing.consumed) as feed:
                    task_status.started()
                    attempts = Attempts(log, watch)
                    tasks.start_soon(attempts.take_back_when_stopped)
                    loop = Loop(feed, trainee, bench, cas, watch, standing, attempts, settings.recovery_s, settings.keep_versions)
                    await loop.run(settings.steps)
            finally:
                tasks.cancel_scope.cancel()
                await node.leave()
        return "finished"

    return run


@dataclass(slots=True)
class Node:
    """What the trainer says of itself in `nodes`. `standing` is None while it recovers."""

    settings: TrainerSettings
    writer: RecordWriter
    bench: Bench
    standing: Standing | None = None
    incarnation: str = field(default_factory=lambda: secrets.token_hex(8))

    async def report(self) -> None:
        """Say about once in `report_s` that this process lives."""
        while True:
            await self._say(self._state())
            await anyio.sleep(self.settings.report_s)

    async def leave(self) -> None:
        """The last word; a broker that is away does not hold up the end."""
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self._say("left")
            await self.writer.flush()

    def _state(self) -> State:
        if self.standing is None:
            return "loading"
        return "training" if self.bench.is_busy else "serving"

    async def _say(self, state: State) -> None:
        version = -1 if self.standing is None else self.standing.version
        status = NodeStatus(node=self.settings.node, incarnation=self.incarnation, tags=["train"], state=state, version=version)
        await self.writer.send(NODES, 0, status)
