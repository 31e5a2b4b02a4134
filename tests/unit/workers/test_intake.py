"""Low watermarks by hand, and what a member commits when its assignment changes under it."""

from __future__ import annotations

import random

import anyio
import pytest

from schemas.record import Record
from schemas.task import Task
from schemas.topics import TASKS
from streams.log import Log, Member
from streams.memory import MemoryBroker
from tests.unit.workers.running import append, memory_log
from workers.intake import Intake, LowWatermark
from workers.trials import FATAL, LEFT, SUSPECT, Trial, metadata_of, trials_of

pytestmark = pytest.mark.anyio


def task(number: int) -> Task:
    return Task(number=number, group=number, member=0, members=1)


async def committed(log: Log, partition: int = 0) -> int:
    place = log.place(TASKS, partition)
    return (await log.broker.committed(log.group("g"), [place])).get(place, (0, ""))[0]


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
        assert await committed(log) == 0
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
        assert await committed(log) == 0
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
            assert (await committed(log, 0), await committed(log, 1)) == (0, 0)
        assert {item.entry.partition for item in await intake.read(timeout_s=5)} == {0, 1}


async def test_records_of_an_assignment_that_began_while_they_were_read_are_read_again() -> None:
    log = await memory_log()
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    other = broker.join(log.group("g"), [log.name(TASKS)])
    found: list[Record] = []
    async with log.join(TASKS, "g") as member, anyio.create_task_group() as tasks:
        intake = Intake(member)
        assert await intake.read(timeout_s=0.01) == []
        (theirs, *_) = sorted(place.partition for place in other.assignment())

        async def read() -> None:
            with anyio.fail_after(20):
                while not found:
                    found.extend(item.entry.record for item in await intake.read(timeout_s=5))

        tasks.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        broker.leave(other)
        append(log, TASKS, theirs, task(7))
    assert found == [task(7)]


async def test_what_may_not_be_begun_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its beginning could not be counted: whoever holds the partition now works on it."""
    log = await memory_log(partitions=1)
    append(log, TASKS, 0, task(0))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        with monkeypatch.context() as patch:
            patch.setattr(Member, "commit", _refuse)
            assert await intake.read(timeout_s=5) == []
        (item,) = await intake.read(timeout_s=5)
        assert item.entry.record == task(0)


def test_trials_survive_as_text_and_foreign_text_is_none() -> None:
    trials = {12: Trial(2, 1), 7: Trial(1, 0)}
    assert metadata_of(trials) == "7:1:0,12:2:1"
    assert trials_of(metadata_of(trials)) == trials
    assert [trials_of(text) for text in ("", LEFT, "epoch=4;", "1:2", "a:b:c")] == [{}] * 5


async def deaths_until_poison(log: Log, killer: int) -> tuple[int, list[int]]:
    """Processes that read, work on everything at once, and die of the record at offset `killer`; what the last one was handed as poison."""
    for deaths in range(10):
        async with log.join(TASKS, "g") as member:
            intake, is_alive = Intake(member), True
            while is_alive:
                items = await intake.read(timeout_s=0.5)
                poison = [item.entry.offset for item in items if item.is_poison]
                if poison:
                    items[0].done()
                    await intake.leave()
                    return deaths, poison
                is_alive = all(item.entry.offset != killer for item in items)
                for item in items if is_alive else ():
                    item.done()
                await intake.commit()
    raise AssertionError("never poison")


@pytest.mark.parametrize("killer", [0, 2, 4])
async def test_a_record_that_kills_its_readers_is_poison_after_counted_deaths_and_the_others_are_done(killer: int) -> None:
    log = await memory_log(partitions=1)
    for number in range(5):
        append(log, TASKS, 0, task(number))
    deaths, poison = await deaths_until_poison(log, killer)
    assert (deaths, poison) == (1 + SUSPECT + FATAL, [killer])
    async with log.join(TASKS, "g") as member:
        rest = await Intake(member).read(timeout_s=0.2)
    assert [item.entry.offset for item in rest if item.entry.offset <= killer] == []


async def test_a_suspect_runs_alone() -> None:
    log = await memory_log(partitions=1)
    for number in range(3):
        append(log, TASKS, 0, task(number))
    place = log.place(TASKS, 0)
    await log.broker.commit(log.group("g"), {place: (0, metadata_of({1: Trial(SUSPECT, 0)}))})
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        first, last = await intake.read(timeout_s=5)
        assert (first.entry.offset, last.entry.offset) == (0, 2)
        assert await intake.read(timeout_s=0.01) == []  # others run
        first.done()
        last.done()
        (suspect,) = await intake.read(timeout_s=5)
        assert (suspect.entry.offset, suspect.is_poison) == (1, False)
        append(log, TASKS, 0, task(3))
        assert await intake.read(timeout_s=0.01) == []  # it runs
        suspect.done()
        (next_,) = await intake.read(timeout_s=5)
        assert next_.entry.offset == 3


async def test_a_clean_end_is_no_death() -> None:
    log = await memory_log(partitions=1)
    append(log, TASKS, 0, task(0))
    for _ in range(10):
        async with log.join(TASKS, "g") as member:
            intake = Intake(member)
            (item,) = await intake.read(timeout_s=5)
            assert not item.is_poison
            await intake.leave()
    assert (await log.broker.committed(log.group("g"), [log.place(TASKS, 0)]))[log.place(TASKS, 0)] == (0, LEFT)
