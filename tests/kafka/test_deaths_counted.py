"""Deaths on a real Kafka: members that come and go are none, work that ends its processes is given up after so many."""

from __future__ import annotations

import anyio
import pytest

from schemas.task import Task
from schemas.topics import TASKS
from streams.cas import open_cas
from streams.kafka import KafkaBroker
from streams.log import Log, Member
from streams.topics import ensure_topics
from workers.intake import Intake, Item
from workers.trials import FATAL, SUSPECT, Trials, trials_of

pytestmark = pytest.mark.anyio

GROUP = "agents"
DEADLINE_S = 60.0


async def log_with_tasks(bootstrap: str, namespace: str, count: int) -> Log:
    log = Log(KafkaBroker(bootstrap, client_id="test-deaths"), namespace, "test")
    await ensure_topics(log.broker, namespace, 1)
    async with open_cas(log, TASKS) as cas:
        for number in range(count):  # one transaction each: markers lie between them
            await cas.write([(0, Task(number=number, group=number, member=0, members=1))])
    return log


async def taken(intake: Intake, count: int) -> list[Item]:
    items: list[Item] = []
    with anyio.fail_after(DEADLINE_S):
        while len(items) < count:
            items += await intake.read(timeout_s=0.2)
    return items


async def trials(member: Member) -> Trials:
    found = await member.committed(0)
    return trials_of("" if found is None else found[1])


async def test_members_that_come_and_go_are_no_deaths(kafka_bootstrap: str, namespace: str) -> None:
    log = await log_with_tasks(kafka_bootstrap, namespace, 1)
    async with log.join(TASKS, GROUP) as member:
        intake = Intake(member)
        for _ in range(3):
            (item,) = await taken(intake, 1)
            assert not item.is_poison
            assert await trials(member) == Trials(begun="some")
            before = member.generation()
            async with log.join(TASKS, GROUP):
                with anyio.fail_after(DEADLINE_S):
                    while member.generation() == before:
                        await anyio.sleep(0.01)


async def test_a_task_that_ends_its_processes_is_poison_after_so_many_and_the_next_one_is_not(kafka_bootstrap: str, namespace: str) -> None:
    log = await log_with_tasks(kafka_bootstrap, namespace, 3)
    killer = 1
    for death in range(SUSPECT + FATAL):
        async with log.join(TASKS, GROUP) as member:
            items, intake = list[Item](), Intake(member)
            while not any(_number(item) == killer for item in items):
                items = await taken(intake, 1)
                assert not any(item.is_poison for item in items), death
                for item in items:
                    if _number(item) != killer:
                        item.done()
    async with log.join(TASKS, GROUP) as member:
        intake = Intake(member)
        (poison,) = await taken(intake, 1)
        assert (_number(poison), poison.is_poison) == (killer, True)
        poison.done()
        (innocent,) = await taken(intake, 1)
        assert (_number(innocent), innocent.is_poison) == (2, False)
        innocent.done()
        await intake.leave()
        assert await trials(member) == Trials()


def _number(item: Item) -> int:
    task = item.entry.record
    assert isinstance(task, Task)
    return task.number
