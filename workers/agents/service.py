"""The agents role: tasks by a consumer group, an episode each, a bounded number at a time.

Tasks are executed at least once: what was not committed when a process died runs again, and R6 removes doubles. Whatever an agent raises
is its own: its session is closed as `failed`, and another try gets a new session with the next attempt number. Invariant: a task is
committed only after its last try ended.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp
import anyio
import openai
import structlog
from anyio.abc import TaskStatus

from schemas.errors import UsageError
from schemas.record import Record
from schemas.task import Task
from schemas.topics import TASKS
from streams.codec import Entry
from streams.log import Log, Member
from streams.service import Role, Watch
from streams.watermark import LowWatermark
from workers.agents.episode import Agent, AgentSawError, Episode, Outcome
from workers.agents.sessions import OpenedSession, close_session, open_session
from workers.agents.settings import AgentsSettings
from workers.agents.tally import Tally

GROUP = "agents"
POLL_S = 0.25

logger = structlog.get_logger()


def role(settings: AgentsSettings) -> Role:
    """The agents role with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        async with log.join(TASKS, GROUP) as member, open_runner(settings, member) as runner, anyio.create_task_group() as tasks:
            tasks.start_soon(runner.keep)
            task_status.started()
            await runner.take_tasks()

    return run


def load_agent(path: str) -> Agent:
    """The agent at `module:attribute`.

    :raises UsageError: there is none.
    """
    module, _, name = path.partition(":")
    try:
        agent: Agent = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"agent {path!r} cannot be loaded: {error}; expected module:attribute") from error
    return agent


@asynccontextmanager
async def open_runner(settings: AgentsSettings, member: Member) -> AsyncIterator[Runner]:
    """A runner with its HTTP clients."""
    agents = [load_agent(settings.agent), load_agent(settings.second_agent or settings.agent)]
    limits = aiohttp.TCPConnector(limit=settings.concurrency * 2)
    timeout = aiohttp.ClientTimeout(total=settings.episode_s)
    async with (
        aiohttp.ClientSession(connector=limits, timeout=timeout) as http,
        openai.AsyncOpenAI(api_key="none", base_url=settings.gateway_url, timeout=settings.episode_s, max_retries=0) as client,
    ):
        yield Runner(settings, member, http, client, agents)


@dataclass
class Runner:
    """The episodes of one process."""

    settings: AgentsSettings
    member: Member
    http: aiohttp.ClientSession
    openai: openai.AsyncOpenAI
    agents: list[Agent]
    tally: Tally = field(default_factory=Tally)
    _marks: dict[int, LowWatermark] = field(default_factory=dict)
    _generation: int = -1

    async def take_tasks(self) -> None:
        """Read tasks and run them; reads no faster than episodes end."""
        slots = anyio.Semaphore(self.settings.concurrency)
        async with anyio.create_task_group() as episodes:
            while True:
                entries = await self.member.read(timeout_s=POLL_S, limit=self.settings.concurrency)
                self._follow_generation()
                for entry in entries:
                    mark = self._marks.setdefault(entry.partition, LowWatermark())
                    mark.take(entry.offset)
                    await slots.acquire()
                    episodes.start_soon(self._run_task, entry, mark, slots)

    async def keep(self) -> None:
        """Commit what is done, and write the tally."""
        try:
            while True:
                await anyio.sleep(self.settings.commit_s)
                await self._commit()
        finally:
            with anyio.move_on_after(5, shield=True):
                await self._commit()

    async def _commit(self) -> None:
        offsets = {partition: mark.next_offset for partition, mark in self._marks.items() if mark.next_offset is not None}
        held = self.member.partitions()
        await self.member.commit({partition: offset for partition, offset in offsets.items() if partition in held})
        if self.settings.report_file is not None:
            self.tally.write(self.settings.report_file)

    def _follow_generation(self) -> None:
        if self.member.generation() != self._generation:
            self._generation = self.member.generation()
            self._marks = {}

    async def _run_task(self, entry: Entry[Record], mark: LowWatermark, slots: anyio.Semaphore) -> None:
        task = entry.record
        assert isinstance(task, Task)
        try:
            for attempt in range(self.settings.attempts):
                if await self._try(task, attempt):
                    break
                await anyio.sleep(self.settings.retry_s)
            else:
                self.tally.lost += 1
                logger.error("every try at a task failed", group=task.group, member=task.member)
            mark.done(entry.offset)
        finally:
            slots.release()

    async def _try(self, task: Task, attempt: int) -> bool:
        """One session; True when the agent came to its end and the session is closed."""
        try:
            session = await open_session(self.http, self.settings.gateway_url, task, attempt)
        except (AgentSawError, aiohttp.ClientError, TimeoutError) as error:
            self.tally.count_error(error)
            return False
        outcome = await self._play(task, session)
        try:
            await close_session(self.http, self.settings.gateway_url, session.id, outcome or Outcome("failed"))
        except (AgentSawError, aiohttp.ClientError, TimeoutError) as error:
            self.tally.count_error(error)  # the assembler closes it when it is idle
        self.tally.episodes += 1
        return outcome is not None

    async def _play(self, task: Task, session: OpenedSession) -> Outcome | None:
        episode = Episode(task, session.base_url, self.http, self.openai)
        try:
            with anyio.fail_after(self.settings.episode_s):
                return await self._agent(task)(episode)
        except Exception as error:  # foreign code: whatever it raises ends its own episode and nothing else
            self.tally.count_error(error)
            logger.warning("an agent failed", group=task.group, member=task.member, error=f"{type(error).__name__}: {error}")
            return None

    def _agent(self, task: Task) -> Agent:
        """By task number, so that a task that runs again gets the same agent."""
        return self.agents[random.Random(task.number).random() < self.settings.second_share if self.settings.second_agent else 0]
