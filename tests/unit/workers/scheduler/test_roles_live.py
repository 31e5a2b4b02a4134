"""A scheduler, rollout workers tagged both ways and a trainer that steps on them, all at work on one log in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
import pytest

from schemas.arrays import pack_i4, unpack_i4
from schemas.grant import Grant, Role
from schemas.node import NodeStatus
from schemas.session import Claim, Open, Request, Sampling
from schemas.span import Span
from schemas.topics import GRANTS, NODES, SESSIONS, TRAINING
from schemas.training import Step
from streams.log import Log
from streams.service import Watch
from tests.unit.trainer.runs import Disk, PaperTrainee, open_log, start_trainer, trainer_settings, write_groups
from tests.unit.workers.running import append, entries, records
from workers.rollout import service as rollout
from workers.rollout.settings import RolloutSettings
from workers.scheduler import service as scheduler
from workers.scheduler.settings import SchedulerSettings

pytestmark = pytest.mark.anyio

DEADLINE_S = 90.0
TOKENS = 150


@dataclass
class Company:
    """Its log, and a scope for each process."""

    log: Log
    scopes: dict[str, anyio.CancelScope]
    tasks: anyio.abc.TaskGroup

    async def start_worker(self, name: str, *, both: bool = True) -> None:
        settings = RolloutSettings(
            node=name, engine="paced", paced_tokens_per_s=100.0, report_s=0.05, commit_s=0.1, flush_s=0.02,
            tags=["rollout", "train"] if both else ["rollout"], snapshots="",
        )  # fmt: skip
        await self._start(name, partial(rollout.role(settings), self.log, Watch()))

    async def start_scheduler(self, least: int) -> None:
        settings = SchedulerSettings(tick_s=0.05, dead_ticks=20, least_train_nodes=least)
        await self._start("scheduler", partial(scheduler.role(settings), self.log, Watch()))

    async def start_trainer(self, hosts: list[str], disk: Disk, steps: int) -> None:
        settings = trainer_settings(hosts=hosts, steps=steps, report_s=0.05)
        await self._start("trainer", partial(start_trainer, self.log, settings, PaperTrainee(disk)))

    async def _start(self, name: str, process: object) -> None:
        scope = self.scopes[name] = anyio.CancelScope()

        async def body(*, task_status: anyio.abc.TaskStatus[None]) -> None:
            with scope:
                await process(task_status=task_status)  # type: ignore[operator]

        await self.tasks.start(body)

    def steps(self) -> int:
        return len(records(self.log, TRAINING, Step))

    def states(self) -> dict[str, str]:
        return {status.node: status.state for status in records(self.log, NODES, NodeStatus)}


@asynccontextmanager
async def company() -> AsyncIterator[Company]:
    async with anyio.create_task_group() as tasks:
        yield Company(await open_log(), {}, tasks)
        tasks.cancel_scope.cancel()


async def until(condition: object) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # type: ignore[operator]
            await anyio.sleep(0.01)


def ask(log: Log) -> int:
    session = append(log, SESSIONS, 0, Open(nonce=b"o", check="abcdef"))
    request = Request(session=session, nonce=b"r", tokens=pack_i4([1, 2]), sampling=Sampling(max_tokens=TOKENS))
    return append(log, SESSIONS, 0, request)


def require_order(log: Log) -> int:
    """Sleep stands between the roles of each node; no partition is granted in between. Answers how often one trained."""
    last: dict[str, Role] = {}
    trained = 0
    for entry in sorted([*entries(log, GRANTS, Role), *entries(log, GRANTS, Grant)], key=lambda entry: entry.offset):
        record = entry.record
        if isinstance(record, Grant):
            before = last.get(record.node)
            assert before is None or (before.role, before.asleep) == ("rollout", False), f"{record.node} is granted while it is {before}"
            continue
        before = last.get(record.node)
        if not record.asleep:
            assert before is not None
            assert (before.role, before.asleep) == (record.role, True)
            trained += record.role == "train"
        last[record.node] = record
    return trained


def require_whole(log: Log, request: int) -> None:
    """All tokens of the request, each once, whoever sampled them: those of the epoch in force count, from where the last stood."""
    indexes: list[int] = []
    epoch = -1
    for entry in sorted([*entries(log, SESSIONS, Span, 0), *entries(log, SESSIONS, Claim, 0)], key=lambda entry: entry.offset):
        record = entry.record
        if isinstance(record, Claim):
            epoch = max(epoch, record.epoch)
        elif record.request == request and record.epoch == epoch and record.start == len(indexes):
            indexes += [token % 10_000 for token in unpack_i4(record.tokens)]
    assert indexes == list(range(TOKENS))


def is_ended(log: Log, request: int) -> bool:
    return any(span.request == request and span.finish for span in records(log, SESSIONS, Span, 0))


async def test_colocated_all_train_and_return_and_nothing_is_lost() -> None:
    async with company() as made:
        await made.start_scheduler(least=2)
        for name in "ab":
            await made.start_worker(name)
        asked = ask(made.log)
        await made.start_trainer(["a", "b"], Disk(), steps=3)
        await until(lambda: made.states().get("a") == made.states().get("b") == "serving")
        for number in range(3):
            write_groups(made.log, 2, first=2 * number)
            await until(lambda number=number: made.steps() == number + 1)
            await until(lambda: made.states()["a"] == made.states()["b"] == "serving")
        await until(lambda: is_ended(made.log, asked))
    assert require_order(made.log) == 6
    require_whole(made.log, asked)
    reasons = [role.reason for role in records(made.log, GRANTS, Role)]
    assert all(reasons)
    assert {status.state for status in records(made.log, NODES, NodeStatus) if status.node == "a"} >= {"serving", "asleep"}


async def test_one_of_two_trains_while_the_other_generates_on() -> None:
    async with company() as made:
        await made.start_scheduler(least=1)
        await made.start_worker("a", both=False)
        await made.start_worker("b")
        asked = ask(made.log)
        write_groups(made.log, 8)
        await made.start_trainer(["b"], Disk(), steps=4)
        await until(lambda: made.steps() == 4 and is_ended(made.log, asked))
    assert {role.node for role in records(made.log, GRANTS, Role)} == {"b"}
    assert require_order(made.log) >= 1
    require_whole(made.log, asked)


async def test_a_trainer_that_is_gone_leaves_its_nodes_to_generation_and_the_next_one_goes_on() -> None:
    async with company() as made:
        disk = Disk()
        await made.start_scheduler(least=2)
        for name in "ab":
            await made.start_worker(name)
        await made.start_trainer(["a", "b"], disk, steps=9)
        write_groups(made.log, 2)
        await until(lambda: made.steps() == 1)
        made.scopes["trainer"].cancel()
        await until(lambda: made.states()["trainer-0"] == "left")
        await until(lambda: made.states()["a"] == made.states()["b"] == "serving")
        write_groups(made.log, 2, first=2)
        await made.start_trainer(["a", "b"], disk, steps=2)
        await until(lambda: made.steps() == 2)
    require_order(made.log)


async def test_a_scheduler_that_is_replaced_goes_on_in_the_middle_of_a_switch() -> None:
    async with company() as made:
        await made.start_scheduler(least=2)
        for name in "ab":
            await made.start_worker(name)
        await made.start_trainer(["a", "b"], Disk(), steps=1)
        write_groups(made.log, 2)
        await until(lambda: any(role.asleep for role in records(made.log, GRANTS, Role)))
        made.scopes["scheduler"].cancel()
        await made.start_scheduler(least=2)
        await until(lambda: made.steps() == 1)
        await until(lambda: made.states()["a"] == made.states()["b"] == "serving")
    require_order(made.log)
