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
from workers.intake import WARY_LIMIT, Intake, Item, LowWatermark
from workers.trials import FATAL, NO_TRIALS, SUSPECT, Trials, metadata_of, taken_over, trials_of

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


async def test_what_is_done_when_partitions_are_dealt_anew_is_not_handed_out_again() -> None:
    log = await memory_log()
    append(log, TASKS, 0, task(0))
    append(log, TASKS, 1, task(1))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        done, running = await intake.read(timeout_s=5)
        done.done()
        async with log.join(TASKS, "g"):
            pass
        (again,) = await intake.read(timeout_s=5)
        assert again.entry == running.entry


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
    trials = Trials(deaths=3, alone=1, until=812, begun="alone")
    assert metadata_of(trials) == "deaths=3;alone=1;until=812;begun=alone"
    assert trials_of(metadata_of(trials)) == trials
    assert metadata_of(NO_TRIALS) == ""
    assert [trials_of(text) for text in ("", "left", "epoch=4;", "1:2", "7:1:0", metadata_of(trials) + ";")] == [NO_TRIALS] * 6


def test_only_what_stands_as_begun_is_a_death_and_what_is_done_is_forgotten() -> None:
    assert taken_over(NO_TRIALS, 5, 9) == NO_TRIALS
    assert taken_over(Trials(begun="some"), 5, 9) == Trials(deaths=1, until=9)
    assert taken_over(Trials(deaths=1, until=7, begun="some"), 5, 9) == Trials(deaths=2, until=7)
    assert taken_over(Trials(deaths=3, alone=1, until=7, begun="alone"), 5, 9) == Trials(deaths=3, alone=2, until=7)
    assert taken_over(Trials(deaths=3, alone=1, until=7), 5, 9) == Trials(deaths=3, alone=1, until=7)
    assert taken_over(Trials(deaths=3, alone=1, until=7, begun="some"), 7, 9) == NO_TRIALS


async def life(log: Log, killers: set[int]) -> list[int]:
    """A process that works on everything at once until one of the killers ends it, or nothing is left; what it was handed as poison."""
    poison: list[int] = []
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        while True:
            items = await intake.read(timeout_s=0.2)
            if any(item.entry.offset in killers for item in items if not item.is_poison):
                return poison
            poison += [item.entry.offset for item in items if item.is_poison]
            for item in items:
                item.done()
            await intake.commit()
            if await committed(log) == END:
                await intake.leave()
                return poison


END = 5


@pytest.mark.parametrize("killer", range(END))
async def test_a_record_that_kills_its_readers_is_poison_after_counted_deaths_and_the_others_are_done(killer: int) -> None:
    log = await tasks_log(END)
    lives = [await life(log, {killer}) for _ in range(SUSPECT + FATAL)]
    assert (lives, await committed(log)) == ([[]] * (SUSPECT + FATAL), killer)
    assert await life(log, {killer}) == [killer]
    assert (await committed(log), await metadata(log)) == (END, "")


async def test_two_killers_are_told_apart() -> None:
    log = await tasks_log(END)
    found = [await life(log, {1, 3}) for _ in range(SUSPECT + FATAL + FATAL + 1)]
    assert found == [[], [], [], [], [], [1], [], [3]]  # the one that buries the first is the first to die of the second alone
    assert await committed(log) == END


async def tasks_log(count: int) -> Log:
    log = await memory_log(partitions=1)
    for number in range(count):
        append(log, TASKS, 0, task(number))
    return log


async def taken(intake: Intake) -> list[Item]:
    """What is handed out next; a suspect is only with the next call."""
    return await intake.read(timeout_s=5) or await intake.read(timeout_s=5)


async def metadata(log: Log) -> str:
    place = log.place(TASKS, 0)
    return (await log.broker.committed(log.group("g"), [place])).get(place, (0, ""))[1]


async def stand(log: Log, offset: int, trials: Trials) -> None:
    """What an earlier member committed."""
    await log.broker.commit(log.group("g"), {log.place(TASKS, 0): (offset, metadata_of(trials))})


async def test_a_suspect_runs_alone() -> None:
    log = await tasks_log(3)
    await stand(log, 0, Trials(SUSPECT, 0, until=2))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        (last,) = await intake.read(timeout_s=5)
        assert last.entry.offset == 2
        assert await intake.read(timeout_s=0.01) == []  # another one runs
        last.done()
        for suspect_offset in (0, 1):
            (suspect,) = await taken(intake)
            assert (suspect.entry.offset, suspect.is_poison) == (suspect_offset, False)
            assert await committed(log) == suspect_offset
            assert trials_of(await metadata(log)) == Trials(SUSPECT, 0, until=2, begun="alone")
            append(log, TASKS, 0, task(3))
            assert await intake.read(timeout_s=0.01) == []  # it runs
            suspect.done()
        assert [item.entry.offset for item in await intake.read(timeout_s=5)] == [3, 4]
        assert trials_of(await metadata(log)) == Trials(begun="some")


async def test_the_log_says_that_work_has_begun_before_it_is_handed_out_and_no_more_when_it_is_done() -> None:
    log = await tasks_log(2)
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        first, second = await intake.read(timeout_s=5)
        assert trials_of(await metadata(log)) == Trials(begun="some")
        first.done()
        await intake.commit()
        assert (await committed(log), trials_of(await metadata(log))) == (1, Trials(begun="some"))
        second.done()
        await intake.commit()
        assert (await committed(log), await metadata(log)) == (2, "")


async def test_after_a_death_the_log_says_how_far_work_has_come() -> None:
    log = await tasks_log(2 * WARY_LIMIT)
    await stand(log, 0, Trials(begun="some"))
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        slow, *quick = await intake.read(timeout_s=5)
        assert len(quick) == WARY_LIMIT - 1
        assert trials_of(await metadata(log)) == Trials(1, 0, until=WARY_LIMIT, begun="some")
        for item in quick:
            item.done()
        await intake.read(timeout_s=5, limit=10)
        assert trials_of(await metadata(log)) == Trials(1, 0, until=WARY_LIMIT + 10, begun="some")
        assert slow.entry.offset == await committed(log) == 0


async def test_a_clean_end_is_no_death_and_forgives_none() -> None:
    log = await tasks_log(1)
    await stand(log, 0, Trials(SUSPECT, 1, until=1))
    for _ in range(10):
        async with log.join(TASKS, "g") as member:
            intake = Intake(member)
            (item,) = await taken(intake)
            assert not item.is_poison
            await intake.leave()
    assert (await committed(log), trials_of(await metadata(log))) == (0, Trials(SUSPECT, 1, until=1))


async def test_members_that_come_and_go_are_no_deaths_of_those_that_stay() -> None:
    log = await tasks_log(1)
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        for _ in range(10):
            (item,) = await intake.read(timeout_s=5)
            assert not item.is_poison
            assert trials_of(await metadata(log)) == Trials(begun="some")
            async with log.join(TASKS, "g"):
                assert await metadata(log) == ""


async def test_a_member_that_the_group_gave_up_says_nothing_more() -> None:
    """A frozen process: its partition is somebody else's, whose count it must not change."""
    log = await tasks_log(1)
    assert isinstance(log.broker, MemoryBroker)
    zombie = log.broker.join(log.group("g"), [log.name(TASKS)], committed=True)
    intake = Intake(Member(log, TASKS, zombie))
    assert len(await intake.read(timeout_s=5)) == 1
    log.broker.leave(zombie)
    async with log.join(TASKS, "g") as member:
        assert len(await Intake(member).read(timeout_s=5)) == 1
        await intake.commit()
        await intake.leave()
        assert trials_of(await metadata(log)) == Trials(1, 0, until=1, begun="some")


async def test_a_member_that_has_not_looked_since_says_nothing_of_what_others_did_meanwhile() -> None:
    log = await tasks_log(2)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    first = broker.join(log.group("g"), [log.name(TASKS)], committed=True)
    sleeper = Intake(Member(log, TASKS, first))
    done, _ = await sleeper.read(timeout_s=5)
    done.done()
    broker.leave(first)
    async with log.join(TASKS, "g") as member:
        intake = Intake(member)
        first.group.members.append(first)
        first.group.rebalance(broker._places)
        for item in await intake.read(timeout_s=5):
            item.done()
        await intake.leave()
    assert first.held
    await sleeper.commit()
    assert await committed(log) == 2
    async with log.join(TASKS, "g"):
        assert await committed(log) == 2


@pytest.mark.parametrize("seed", range(20))
async def test_a_killer_ends_a_bounded_number_of_processes_whatever_happens_between_and_no_innocent_is_poison(seed: int) -> None:
    """Lives of random length: some end in the killer, some cleanly, some see others come and go; nobody else dies."""
    print("seed", seed)
    chance, log, deaths = random.Random(seed), await tasks_log(12), 0
    killer = chance.randrange(12)
    poison: list[int] = []
    while not poison:
        async with log.join(TASKS, "g") as member:
            intake, running = Intake(member), list[Item]()
            for _ in range(chance.randint(1, 12)):
                items = await intake.read(timeout_s=0.001, limit=chance.randint(1, 5))
                poison += [item.entry.offset for item in items if item.is_poison]
                running += items
                if poison:
                    break
                if chance.random() < 0.2:
                    async with log.join(TASKS, "g"):
                        running = []
                if chance.random() < 0.5 and any(item.entry.offset == killer and not item.is_poison for item in running):
                    deaths += 1
                    break
                for item in [item for item in running if item.entry.offset != killer and chance.random() < 0.5]:
                    item.done()
                await intake.commit()
            else:
                await intake.leave()
    assert poison == [killer]
    assert deaths == SUSPECT + FATAL
