"""The agents role: tasks by a consumer group, an episode each, a bounded number at a time.

Tasks are executed at least once: what was not committed when a process died runs again, and R6 removes doubles. Whatever an agent raises
is its own: its session is closed as `failed`, and another try gets a new session with the next attempt number. Invariant: a task is
committed only after its last try ended, or when the trainer has decided its group. One that is given up is buried: after its last try, or
when it ended counted processes (`workers.trials`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import anyio
import openai
import structlog
from anyio.abc import TaskStatus

from schemas.record import Record
from schemas.task import Task
from schemas.topics import TASKS, TRAINING
from streams.log import Log
from streams.service import Role, Watch
from streams.table import open_table
from workers.agents.decided import Decided
from workers.agents.episode import Agent, AgentSawError, Episode, Outcome
from workers.agents.sessions import Gateway, OpenedSession
from workers.agents.settings import AgentsSettings
from workers.agents.tally import Tally
from workers.intake import Intake, Item
from workers.plugin import load_plugin

GROUP = "agents"
POLL_S = 0.25
LEAVE_S = 5.0

logger = structlog.get_logger()


def role(settings: AgentsSettings) -> Role:
    """The agents role with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        async with open_table(log, TRAINING) as training, log.join(TASKS, GROUP) as member, anyio.create_task_group() as tasks:
            decided = Decided(training)
            tasks.start_soon(decided.follow)
            async with open_runner(settings, Intake(member), decided) as runner:
                task_status.started()
                try:
                    await runner.take_tasks()
                finally:
                    with anyio.move_on_after(LEAVE_S, shield=True):
                        await runner.leave()

    return run


@asynccontextmanager
async def open_runner(settings: AgentsSettings, intake: Intake, decided: Decided) -> AsyncIterator[Runner]:
    """A runner with its HTTP clients."""
    agents: list[Agent] = [load_plugin(settings.agent), load_plugin(settings.second_agent or settings.agent)]
    limits = aiohttp.TCPConnector(limit=settings.concurrency * 2)
    timeout = aiohttp.ClientTimeout(total=settings.episode_s)
    async with (
        aiohttp.ClientSession(connector=limits, timeout=timeout) as http,
        openai.AsyncOpenAI(api_key="none", base_url=settings.gateway_url, timeout=settings.episode_s, max_retries=0) as client,
    ):
        gateway = Gateway(http, settings.gateway_url.rstrip("/"), settings.patience_s)
        yield Runner(settings, intake, decided, http, client, agents, gateway)


@dataclass
class Runner:
    """The episodes of one process."""

    settings: AgentsSettings
    intake: Intake
    decided: Decided
    http: aiohttp.ClientSession
    openai: openai.AsyncOpenAI
    agents: list[Agent]
    gateway: Gateway
    tally: Tally = field(default_factory=Tally)

    async def take_tasks(self) -> None:
        """Read as many tasks as can be run at once, and run them. What is done is committed meanwhile, however long episodes take."""
        slots, next_commit = anyio.Semaphore(self.settings.concurrency), 0.0
        async with anyio.create_task_group() as episodes:
            while True:
                for item in await self._read(slots):
                    slots.acquire_nowait()
                    episodes.start_soon(self._run_task, item, slots)
                if anyio.current_time() >= next_commit:
                    await self.keep()
                    next_commit = anyio.current_time() + self.settings.commit_s

    async def keep(self) -> None:
        """Commit what is done, and write the tally."""
        await self.intake.commit()
        if self.settings.report_file is not None:
            self.tally.write(self.settings.report_file)

    async def leave(self) -> None:
        """As `keep`, at a clean end."""
        await self.keep()
        await self.intake.leave()

    async def _read(self, slots: anyio.Semaphore) -> list[Item]:
        """As many tasks as there are free slots; none after a moment."""
        with anyio.move_on_after(POLL_S):
            async with slots:
                pass
        return await self.intake.read(timeout_s=POLL_S, limit=slots.value) if slots.value else []

    async def _run_task(self, item: Item, slots: anyio.Semaphore) -> None:
        try:
            why = "the agent ended every process that ran it" if item.is_poison else await self._try_all(item.entry.record)
            if why:
                await self._give_up(item, why)
            item.done()
        finally:
            slots.release()

    async def _try_all(self, task: Record) -> str:
        """Answers why every try failed; nothing when one succeeded, or none was needed."""
        assert isinstance(task, Task)
        why = ""
        for attempt in range(self.settings.attempts):
            if self.decided.covers(task) or not (why := await self._try(task, attempt)):
                return ""
            await anyio.sleep(self.settings.retry_s)
        return f"{self.settings.attempts} tries failed, the last one by {why}"

    async def _give_up(self, item: Item, why: str) -> None:
        """Nobody tries this task again: its group ends without it."""
        self.tally.lost += 1
        logger.error("a task is given up", partition=item.entry.partition, offset=item.entry.offset, why=why)
        await self.intake.member.log.bury_record(TASKS, item.entry, f"poison: {why}")

    async def _try(self, task: Task, attempt: int) -> str:
        """One session; answers why it failed, or nothing when the agent came to its end and the session is closed."""
        try:
            session = await self.gateway.open_session(task, attempt)
        except (AgentSawError, aiohttp.ClientError, TimeoutError) as error:
            self.tally.count_error(error)
            return _said(error)
        outcome, why = await self._play(task, session)
        try:
            await self.gateway.close_session(session.id, outcome)
        except (AgentSawError, aiohttp.ClientError, TimeoutError) as error:
            self.tally.count_error(error)  # the assembler closes it when it is idle
        self.tally.episodes += 1
        return why

    async def _play(self, task: Task, session: OpenedSession) -> tuple[Outcome, str]:
        """The outcome, and why the agent failed, if it did."""
        episode = Episode(task, session.base_url, self.http, self.openai)
        try:
            with anyio.fail_after(self.settings.episode_s):
                return await self._agent(task)(episode), ""
        except Exception as error:  # foreign code: whatever it raises ends its own episode and nothing else
            self.tally.count_error(error)
            logger.warning("an agent failed", group=task.group, member=task.member, error=_said(error))
            return Outcome("failed"), _said(error)

    def _agent(self, task: Task) -> Agent:
        """By task number, so that a task that runs again gets the same agent."""
        return self.agents[random.Random(task.number).random() < self.settings.second_share if self.settings.second_agent else 0]


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
