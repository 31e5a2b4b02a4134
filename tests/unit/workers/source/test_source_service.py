"""The source on the broker in memory: tasks by cas, restarts at any point, a second source."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from schemas.errors import Superseded
from schemas.score import Score
from schemas.task import Task
from schemas.topics import SCORES, TASKS, TRAINING
from schemas.training import Drops
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Role, first_error
from tests.unit.workers.running import append, entries, memory_log, records, running, until
from tests.unit.workers.source.test_rhythm import drops, step, version
from workers.source.service import role
from workers.source.settings import SourceSettings

pytestmark = pytest.mark.anyio


def source(**more: Any) -> Role:
    values: dict[str, Any] = {
        "tasks": "tests.unit.workers.source.plugins:Counted", "members": 2, "groups_per_step": 2, "staleness_bound": 1,
        "evaluate_first": False, "evaluate_every": 0, "evaluate_last": False,
    }
    return role(SourceSettings(**{**values, **more}))


def numbers(log: Log) -> list[int]:
    return sorted(task.number for task in records(log, TASKS, Task))


async def test_tasks_are_written_to_the_bound_and_after_every_decision() -> None:
    log = await memory_log()
    append(log, TRAINING, 0, version(0))
    async with running(source(), log):
        await until(lambda: numbers(log) == list(range(8)), "four groups of two")
        append(log, TRAINING, 0, step(1, trained=[0, 3]))
        await until(lambda: numbers(log) == list(range(12)), "two more groups")
        append(log, TRAINING, 0, Drops(groups=[1], consumed=drops().consumed))
        await until(lambda: numbers(log) == list(range(14)), "one more group")


async def test_the_tasks_of_a_write_are_committed_together_and_spread_over_the_partitions() -> None:
    log = await memory_log()
    append(log, TRAINING, 0, version(0))
    async with running(source(), log):
        await until(lambda: numbers(log), "tasks")
    assert numbers(log) == list(range(8))
    assert [entry.partition for entry in sorted(entries(log, TASKS, Task), key=lambda e: e.record.number)] == list(range(8))


async def test_training_waits_for_the_first_round_and_goes_on_with_its_scores() -> None:
    log = await memory_log()
    append(log, TRAINING, 0, version(0))
    async with running(source(evaluate_first=True), log):
        await until(lambda: numbers(log) == [0, 1], "the round")
        for task in records(log, TASKS, Task):
            assert (task.purpose, task.evaluates) == ("eval", 0)
            append(log, SCORES, 0, Score(trajectory=0, session=0, rule="r", value=0.5, purpose="eval", group=task.group))
        await until(lambda: numbers(log) == list(range(10)), "training tasks")


async def test_training_does_not_wait_for_ever() -> None:
    log = await memory_log()
    append(log, TRAINING, 0, version(0))
    async with running(source(evaluate_first=True, evaluation_s=0.05), log):
        await until(lambda: numbers(log) == list(range(10)), "training tasks without scores")


@pytest.mark.parametrize("fault", [None, "answer lost", "write lost"])
async def test_a_restart_goes_on_behind_its_last_record_whatever_became_of_its_last_write(fault: Any) -> None:
    log = await memory_log()
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    append(log, TRAINING, 0, version(0))
    if fault is not None:
        broker.commit_faults.append(fault)
    for round_ in range(4):
        async with running(source(), log):
            await until(lambda: len(numbers(log)) == 8 + 4 * round_, "the bound is full")  # noqa: B023
        append(log, TRAINING, 0, step(round_ + 1, trained=[2 * round_, 2 * round_ + 1]))
    assert numbers(log) == list(range(20))


async def test_of_two_sources_one_writes_and_the_other_ends() -> None:
    log = await memory_log()
    failures: list[BaseException] = []

    async def one() -> None:
        try:
            async with running(source(), log):
                await anyio.sleep_forever()
        except* Superseded as group:
            failures.append(first_error(group))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(one)
        tasks.start_soon(one)
        await anyio.wait_all_tasks_blocked()
        append(log, TRAINING, 0, version(0))
        await until(lambda: len(failures) == 1 and numbers(log), "one ends")
        append(log, TRAINING, 0, step(1, trained=[0, 1]))
        await until(lambda: numbers(log) == list(range(12)), "the other goes on")
        tasks.cancel_scope.cancel()
    assert len(failures) == 1
