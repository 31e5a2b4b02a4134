"""Low watermarks by hand, and what a member commits when its assignment changes under it."""

from __future__ import annotations

import random

import pytest

from schemas.task import Task
from schemas.topics import TASKS
from streams.log import Log, Member
from tests.unit.workers.running import append, memory_log
from workers.intake import Intake, LowWatermark

pytestmark = pytest.mark.anyio


def task(number: int) -> Task:
    return Task(number=number, group=number, member=0, members=1)


async def committed(log: Log, partition: int = 0) -> int | None:
    place = log.place(TASKS, partition)
    found = await log.broker.committed(log.group("g"), [place])
    return found[place][0] if place in found else None


def test_the_watermark_is_the_lowest_that_is_not_done() -> None:
    mark = LowWatermark(10)
    assert mark.offset == 10
    for offset in (10, 12, 13):  # 11 is no record
        mark.begin(offset)
    mark.done(12)
    assert mark.offset == 10
    mark.done(10)
    assert mark.offset == 13
    mark.done(10)
    mark.done(13)
    assert mark.offset == 14


@pytest.mark.parametrize("seed", range(5))
def test_the_watermark_equals_the_naive_one(seed: int) -> None:
    print("seed", seed)
    draw, mark, running, end = random.Random(seed), LowWatermark(0), set[int](), 0
    for _ in range(300):
        if running and draw.random() < 0.5:
            offset = draw.choice(sorted(running))
            mark.done(offset)
            running.remove(offset)
        else:
            end += draw.randint(0, 2)
            mark.begin(end)
            running.add(end)
            end += 1
        assert mark.offset == min(running, default=end)


async def test_only_what_is_done_is_committed() -> None:
    log = await memory_log()
    for number in range(3):
        append(log, TASKS, 0, task(number))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        first, second, third = await intake.read(timeout_s=5)
        second.done()
        await intake.commit()
        assert await committed(log) is None
        first.done()
        await intake.commit()
        assert await committed(log) == 2
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        (again,) = await intake.read(timeout_s=5)
        assert again.entry == third.entry


async def test_work_of_an_older_assignment_moves_no_watermark_of_a_newer_one() -> None:
    log = await memory_log()
    for number in range(2):
        append(log, TASKS, 0, task(number))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        first, second = await intake.read(timeout_s=5)
        async with log.join(TASKS, "g"):
            pass
        old = [first, second]
        again = await intake.read(timeout_s=5)
        assert [item.entry.offset for item in again] == [0, 1]
        for item in old:
            item.done()
        await intake.commit()
        assert await committed(log) is None
        again[0].done()
        await intake.commit()
        assert await committed(log) == 1


async def test_a_refused_commit_hands_everything_out_anew_though_nobody_else_came(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log()
    append(log, TASKS, 0, task(0))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        (first,) = await intake.read(timeout_s=5)
        first.done()
        with monkeypatch.context() as patch:
            patch.setattr(Member, "commit", _refuse)
            await intake.commit()
        (again,) = await intake.read(timeout_s=5)
        assert again.entry == first.entry
        again.done()
        await intake.commit()
    assert await committed(log) == 1


async def _refuse(self: Member, offsets: object) -> bool:
    return False


async def test_a_refused_commit_hands_everything_out_anew() -> None:
    log = await memory_log()
    append(log, TASKS, 0, task(0))
    append(log, TASKS, 1, task(1))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        for item in await intake.read(timeout_s=5):
            item.done()
        async with log.join(TASKS, "g"):
            await intake.commit()
            assert (await committed(log, 0), await committed(log, 1)) == (None, None)
        assert {item.entry.partition for item in await intake.read(timeout_s=5)} == {0, 1}
