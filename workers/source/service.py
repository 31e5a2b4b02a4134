"""The source role: gives out tasks by cas, as the rhythm allows, and evaluation rounds when they are due.

Its cursor is its own records: a restarted source reads `tasks` and goes on. Two sources: the one that writes second finds that the
first has written, and exits (Superseded).
"""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import structlog
from anyio.abc import TaskStatus

from schemas.task import Task
from schemas.topics import SCORES, TASKS, TRAINING, Topic
from streams.cas import CasLog, open_cas
from streams.failpoint import failpoint
from streams.log import Log
from streams.service import Role, Watch
from workers.plugin import load_plugin
from workers.source.rhythm import Rhythm
from workers.source.settings import SourceSettings

POLL_S = 1.0

logger = structlog.get_logger()


def role(settings: SourceSettings) -> Role:
    """The source role with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        rhythm = Rhythm(settings, load_plugin(settings.tasks)(settings.seed))
        async with open_cas(log, TASKS) as cas, anyio.create_task_group() as tasks:
            for entry in cas.history:
                rhythm.take(entry.record)
            source = Source(log, rhythm, cas, watch, len(await log.places(TASKS)))
            for topic in (TRAINING, SCORES):
                await tasks.start(source.follow, topic)
            task_status.started()
            await source.give_out()

    return run


class Source:
    """The tasks of one source process."""

    def __init__(self, log: Log, rhythm: Rhythm, cas: CasLog, watch: Watch, partitions: int) -> None:
        self._log, self._rhythm, self._cas, self._watch, self._partitions = log, rhythm, cas, watch, partitions
        self._changed = anyio.Event()

    async def follow(self, topic: Topic, *, task_status: TaskStatus[None]) -> None:
        """Fold a topic; started when it is read to its end: what was decided before must not be given out again."""
        async with self._log.follow_all(topic) as reader:
            partitions = [place.partition for place in await self._log.places(topic)]
            for entry in await reader.read_to_end(partitions):
                self._rhythm.take(entry.record)
            task_status.started()
            while True:
                for entry in await reader.read(timeout_s=POLL_S):
                    self._rhythm.take(entry.record)
                    self._changed.set()

    async def give_out(self) -> None:
        """Write what may be written, whenever something was decided."""
        until = anyio.current_time() + self._rhythm.settings.evaluation_s
        while True:
            while tasks := self._rhythm.next_tasks():
                await self._write(tasks)
            with anyio.move_on_after(POLL_S):
                await self._changed.wait()
            self._changed = anyio.Event()
            self._give_up_waiting_after(until)

    async def _write(self, tasks: Sequence[Task]) -> None:
        with self._watch.waiting_for("a commit to tasks"):
            await self._cas.write([(task.number % self._partitions, task) for task in tasks])
        failpoint("source.after_tasks")
        for task in tasks:
            self._rhythm.take(task)
        if tasks[0].evaluates is not None:
            logger.info("evaluation", version=tasks[0].evaluates, prompts=len(tasks))

    def _give_up_waiting_after(self, until: float) -> None:
        rhythm = self._rhythm
        if rhythm.waits_for_evaluation() and rhythm.rounds and anyio.current_time() > until:
            rhythm.gave_up_waiting = True
            logger.warning("training begins without the scores of the first evaluation", missing=len(rhythm.unscored()))
