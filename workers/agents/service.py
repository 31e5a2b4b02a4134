"""The agents role: tasks by a consumer group, an episode each, a bounded number at a time.

Tasks are executed at least once: what was not committed when a process died runs again, and R6 removes doubles. Whatever an agent raises
is its own: its session is closed as `failed`, and another try gets a new session with the next attempt number.

Invariants:
- a task is committed only after its last try ended, or when the trainer has decided its group;
- a gateway that is away costs no try: the task waits; nor does a failure of an agent whose session could not be closed for that reason;
- a task that is given up is buried: after its last try, or when it ended counted processes (`workers.trials`).
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp
import anyio
import openai
import structlog
from anyio.abc import TaskStatus

from schemas.record import Record
from schemas.task import Task
from schemas.topics import TASKS, TRAINING
from streams.log import Log
from streams.service import Role, Watch, came_from_outside
from streams.table import open_table
from workers.agents.decided import Decided
from workers.agents.episode import Agent, AgentSawError, Episode, Outcome, checked
from workers.agents.sessions import Gateway, GatewayAway, OpenedSession
from workers.agents.settings import AgentsSettings
from workers.agents.tally import Tally
from workers.intake import Intake, Item
from workers.plugin import PluginFailed, ask, load_plugin, said

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
                except BaseException as end:
                    await runner.leave(is_clean=came_from_outside(end))
                    raise

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


class _Failure(NamedTuple):
    """Why a try failed, and whether it counts as one."""

    why: str
    counts: bool = True


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

    async def leave(self, *, is_clean: bool) -> None:
        """As `keep`, at the end. `is_clean`: no task that runs caused it."""
        with anyio.move_on_after(LEAVE_S, shield=True):
            await self.keep()
            if is_clean:
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
        attempt = failures = 0
        while (failure := await self._try(task, attempt)) is not None:
            attempt, failures = attempt + 1, failures + failure.counts
            if failures == self.settings.attempts:
                return f"{failures} tries failed, the last one by {failure.why}"
            await anyio.sleep(self.settings.retry_s)
        return ""

    async def _give_up(self, item: Item, why: str) -> None:
        """Nobody tries this task again: its group ends without it."""
        self.tally.lost += 1
        logger.error("a task is given up", partition=item.entry.partition, offset=item.entry.offset, why=why)
        await self.intake.member.log.bury_record(TASKS, item.entry, f"poison: {why}")

    async def _try(self, task: Task, attempt: int) -> _Failure | None:
        """One session; nothing when the agent came to its end, or the trainer has decided the group."""
        try:
            session = await self._open(task, attempt)
        except AgentSawError as error:
            self.tally.count_error(said(error))
            return _Failure(said(error))
        if session is None:
            return None
        outcome, why = await self._play(task, session)
        self.tally.episodes += 1
        is_there = await self._close(session, outcome)
        return _Failure(why, counts=is_there) if why else None

    async def _open(self, task: Task, attempt: int) -> OpenedSession | None:
        """A session; none when the trainer has decided the group, perhaps meanwhile.

        :raises AgentSawError: the gateway refused.
        """
        while not self.decided.covers(task):
            try:
                return await self.gateway.open_session(task, attempt)
            except GatewayAway as away:
                logger.warning("a task waits for a gateway", url=self.gateway.url, group=task.group, member=task.member, said=str(away))
        return None

    async def _close(self, session: OpenedSession, outcome: Outcome) -> bool:
        """Whether the gateway is there. A session that is not closed is closed by the assembler, when it is idle."""
        try:
            await self.gateway.close_session(session.id, outcome)
        except GatewayAway as away:
            logger.warning("a session could not be closed", url=self.gateway.url, session=session.id, said=str(away))
            return False
        except AgentSawError as error:
            self.tally.count_error(said(error))
        return True

    async def _play(self, task: Task, session: OpenedSession) -> tuple[Outcome, str]:
        """The outcome, and why the agent failed, if it did."""
        episode = Episode(task, session.base_url, self.http, self.openai)

        async def play() -> Outcome:
            return checked(await self._agent(task)(episode))

        try:
            return await ask(play, self.settings.episode_s), ""
        except PluginFailed as failed:
            self.tally.count_error(str(failed))
            logger.warning("an agent failed", group=task.group, member=task.member, error=str(failed))
            return Outcome("failed"), str(failed)

    def _agent(self, task: Task) -> Agent:
        """By task number, so that a task that runs again gets the same agent."""
        return self.agents[random.Random(task.number).random() < self.settings.second_share if self.settings.second_agent else 0]
