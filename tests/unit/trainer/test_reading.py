"""The reading side of the trainer: where it begins, when it stops, and how a plan's trajectories are found again."""

from __future__ import annotations

import anyio
import pytest

from schemas.errors import CorruptRecord, LogError, RetentionPassed
from schemas.task import Task
from schemas.topics import SCORES, TASKS, TRAJECTORIES
from schemas.training import Consumed, Place, Watermark
from schemas.trajectory import Trajectory
from streams.broker import Outgoing
from streams.broker import Place as LogPlace
from streams.log import Log
from streams.memory import MemoryBroker
from tests.unit.trainer.runs import MEMBERS, append, open_log, trainer_settings, write_groups
from tests.unit.trainer.trees import node
from trainer.feed.plan import Batch
from trainer.reading import LiveFeed, open_feed
from trainer.recover import read_places

pytestmark = pytest.mark.anyio
FEED = trainer_settings(feed={"groups_per_step": 1}).feed
PLENTY = 1 << 30


async def next_batch(feed: LiveFeed) -> Batch:
    with anyio.fail_after(10):
        decided = await feed.next(0)
    assert isinstance(decided, Batch)
    return decided


def truncate(log: Log, topic: str, partition: int, offset: int) -> None:
    assert isinstance(log.broker, MemoryBroker)
    log.broker.truncate(LogPlace(log.namespace + topic, partition), offset)


async def test_while_a_batch_waits_reading_stops_at_the_bound() -> None:
    log = await open_log()
    write_groups(log, 2)
    async with open_feed(log, FEED, 1, Consumed()) as feed:
        first = await next_batch(feed)
        await anyio.wait_all_tasks_blocked()
        write_groups(log, 40, first=2)
        await anyio.wait_all_tasks_blocked()
        write_groups(log, 40, first=42)
        await anyio.wait_all_tasks_blocked()
        # What was under way when the bound was passed is held, and nothing of what came later.
        assert feed._feed.state()["sessions_held"] <= 41 * MEMBERS
        batches = [first] + [await next_batch(feed) for _ in range(81)]
    assert sorted(group for batch in batches for group in batch.groups_trained) == list(range(82))


async def test_no_group_ends_because_a_slow_trainer_held_up_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second session of each group is read only after the first ones of all: steps take longer than a group's deadline meanwhile."""
    time_s = 0.0
    monkeypatch.setattr("trainer.reading.current_time", lambda: time_s)
    monkeypatch.setattr("trainer.reading.READ_LIMIT", 1)
    log, groups, settings = await open_log(), 6, FEED.model_copy(update={"rules": {"reported": 1.0}, "group_deadline_s": 60.0})
    for number in range(2 * groups):
        member, group = divmod(number, groups)
        append(log, TASKS, 0, Task(number=2 * group + member, group=group, member=member, members=2))
        nodes = [node([1], [2])]
        append(log, TRAJECTORIES, 0, Trajectory(session=number, close=number, group=group, member=member, reward=member, nodes=nodes))
    async with open_feed(log, settings, 1, Consumed()) as feed:
        for group in range(groups):
            assert (await next_batch(feed)).groups_trained == [group]
            await anyio.wait_all_tasks_blocked()
            time_s += 1000.0


async def test_reading_begins_where_the_last_record_says() -> None:
    log = await open_log()
    write_groups(log, 6)
    async with open_feed(log, FEED, PLENTY, Consumed()) as feed:
        first = await next_batch(feed)
    async with open_feed(log, FEED, PLENTY, first.consumed) as feed:
        others = [await next_batch(feed) for _ in range(5)]
    assert sorted(first.groups_trained + [group for batch in others for group in batch.groups_trained]) == list(range(6))


async def test_a_new_run_begins_at_the_first_record_left() -> None:
    log = await open_log()
    write_groups(log, 4)
    for topic in (TRAJECTORIES, SCORES):
        truncate(log, topic.name, 0, 2)
    async with open_feed(log, FEED, PLENTY, Consumed()) as feed:
        batches = [await next_batch(feed) for _ in range(3)]
    assert sorted(group for batch in batches for group in batch.groups_trained) == [1, 2, 3]


async def test_lost_records_are_an_error() -> None:
    log = await open_log()
    write_groups(log, 4)
    truncate(log, TRAJECTORIES.name, 0, 3)
    consumed = Consumed(watermarks=[Watermark(partition=0, trajectory=1, close=1)])
    with pytest.raises(BaseExceptionGroup) as caught:
        async with open_feed(log, FEED, PLENTY, consumed) as feed:
            await next_batch(feed)
    assert caught.group_contains(RetentionPassed)


async def test_drops_of_the_last_moment_are_handed_out() -> None:
    log = await open_log()
    append(log, TRAJECTORIES, 0, Trajectory(session=0, close=1))
    async with open_feed(log, FEED.model_copy(update={"drops_deadline_s": 1e9}), PLENTY, Consumed()) as feed:
        with anyio.fail_after(10):
            while not (rest := feed.rest()):
                await anyio.sleep(0.01)
        assert [drop.reason for drops in rest for drop in drops.drops] == ["empty"]
        assert feed.rest() == []


def place(partition: int, offset: int, session: int) -> Place:
    return Place(partition=partition, offset=offset, session=session)


async def log_of_sessions() -> Log:
    """Session 10 · n at offset n of partitions 0 and 1."""
    log = await open_log()
    for partition in (0, 1):
        for number in range(5):
            append(log, TRAJECTORIES, partition, Trajectory(session=10 * number, close=10 * number + 1, nodes=[node([1], [2])]))
    return log


async def test_places_are_read_in_the_order_of_the_plan() -> None:
    found = await read_places(await log_of_sessions(), [place(1, 3, 30), place(0, 1, 10), place(1, 0, 0)])
    assert [each.session for each in found] == [30, 10, 0]


async def test_another_session_at_a_place_is_an_error() -> None:
    with pytest.raises(CorruptRecord, match="0-1 is of session 10, not 20"):
        await read_places(await log_of_sessions(), [place(0, 1, 20)])


async def test_bytes_that_are_no_trajectory_are_an_error() -> None:
    log = await log_of_sessions()
    assert isinstance(log.broker, MemoryBroker)
    log.broker.append(Outgoing(log.name(TRAJECTORIES), 0, b"50", b"not a record"))
    append(log, TRAJECTORIES, 0, Trajectory(session=60, close=61))
    with pytest.raises(LogError, match="trajectory 0-5 of a committed Step cannot be read"):
        await read_places(log, [place(0, 5, 50), place(0, 6, 60)])
