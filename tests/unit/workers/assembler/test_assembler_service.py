"""The assembler on the broker in memory: one Trajectory a session, in Close order, whatever happens to its process."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from schemas.deadletter import DeadLetter
from schemas.grant import Grant
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Close
from schemas.topics import DEADLETTER, GRANTS, SESSIONS, TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.log import Log, Member
from streams.memory import MemoryBroker
from tests.unit.workers.assembler.session_log import claim, close, open_, request, session_of, span
from tests.unit.workers.running import append, entries, memory_log, records, running, until
from workers.assembler.service import Assembler, role
from workers.assembler.settings import AssemblerSettings
from workers.assembler.trajectory import trajectory_of
from workers.ledger import SessionState

pytestmark = pytest.mark.anyio

QUICK = AssemblerSettings(commit_s=0.01)


def write(log: Log, partition: int, *log_records: Record) -> None:
    for record in log_records:
        append(log, SESSIONS, partition, record)


def closes(log: Log, partition: int) -> list[int]:
    """The Close offsets of the partition's Trajectories, as they were written."""
    return [trajectory.close for trajectory in records(log, TRAJECTORIES, Trajectory, partition)]


def counted(offsets: Sequence[int]) -> list[int]:
    """R6: a Close offset that is not above the last one is a duplicate."""
    found: list[int] = []
    for offset in offsets:
        if not found or offset > found[-1]:
            found.append(offset)
    return found


async def kept(log: Log, partition: int) -> Position | None:
    place = log.place(SESSIONS, partition)
    found = await log.broker.committed(log.group("assembler"), [place])
    return Position.parse(*found[place]) if place in found else None


async def until_kept(log: Log, partition: int, position: Position) -> None:
    with anyio.fail_after(20):
        while await kept(log, partition) != position:
            await anyio.sleep(0.002)


async def test_trajectories_come_in_close_order_and_the_position_follows_the_oldest_unfinished_session() -> None:
    log = await memory_log()
    write(log, 0, claim(7), open_(), open_(), open_(), request(3, (1,)), span(3, 4, 0, (5,), (-1.0,), 0, "stop"), close(3), close(1))
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [6, 7], "two trajectories")
        await until_kept(log, 0, Position(2, 7))
        write(log, 0, claim(9), close(2))
        await until(lambda: closes(log, 0) == [6, 7, 9], "the third")
        await until_kept(log, 0, Position(10, 9))
    assert [t.session for t in records(log, TRAJECTORIES, Trajectory, 0)] == [3, 1, 2]
    assert await kept(log, 1) == Position(0, -1)


async def test_a_trajectory_stands_in_the_partition_number_of_its_session() -> None:
    log = await memory_log(partitions=3)
    for partition in range(3):
        write(log, partition, claim(1), open_(group=partition), close(1))
    async with running(role(QUICK), log):
        await until(lambda: all(closes(log, partition) for partition in range(3)), "three trajectories")
    assert [t.group for partition in range(3) for t in records(log, TRAJECTORIES, Trajectory, partition)] == [0, 1, 2]


async def test_no_position_passes_a_session_whose_trajectory_is_not_acknowledged() -> None:
    log = await memory_log()
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    write(log, 0, claim(7), open_(), close(1))
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [2], "the first trajectory")
        await until_kept(log, 0, Position(3, 7))
        broker.held = True
        write(log, 0, open_(), close(3), open_())
        place = log.place(TRAJECTORIES, 0)
        await until(lambda: sum(outbox.waiting().get(place, 0) for outbox in broker.outboxes) == 1, "a trajectory on its way")
        write(log, 1, claim(8))
        await until_kept(log, 1, Position(1, 8))  # committed together with what partition 0 allows
        assert await kept(log, 0) == Position(3, 7)
        broker.held = False
        for outbox in broker.outboxes:
            while outbox.waiting():
                outbox.land(next(iter(outbox.waiting())))
        await until_kept(log, 0, Position(5, 7))


@pytest.mark.parametrize("with_snapshots", [False, True])
@pytest.mark.parametrize("seed", range(8))
async def test_killed_at_any_point_every_session_has_its_trajectory_in_close_order(
    seed: int, with_snapshots: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    print("seed", seed)
    draw = random.Random(seed)
    settings = AssemblerSettings(commit_s=0.01, snapshots=str(tmp_path) if with_snapshots else "", snapshot_bytes=1)
    log = await memory_log(partitions=1)
    opened: list[int] = []
    expected: list[int] = []
    offset = append(log, SESSIONS, 0, claim(1))
    while len(expected) < 12:
        monkeypatch.undo()
        if draw.random() < 0.5:  # it dies without its last commit
            monkeypatch.setattr(Assembler, "commit", _commit_nothing)
        async with running(role(settings), log):
            for _ in range(draw.randint(1, 8)):
                if opened and draw.random() < 0.5:
                    offset = append(log, SESSIONS, 0, close(opened.pop(draw.randrange(len(opened)))))
                    expected.append(offset)
                else:
                    offset = append(log, SESSIONS, 0, open_())
                    opened.append(offset)
            if draw.random() < 0.7:
                await until(lambda: counted(closes(log, 0)) == expected, "all closed so far")
    monkeypatch.undo()
    async with running(role(settings), log):
        await until(lambda: counted(closes(log, 0)) == expected, "all closed")
        await until_kept(log, 0, Position(min(opened, default=offset + 1), 1))


async def _commit_nothing(self: Assembler) -> None:
    """A process that is killed commits nothing."""


async def test_a_new_assembler_begins_with_a_snapshot_and_writes_the_same_trajectory(tmp_path: Path) -> None:
    settings = AssemblerSettings(commit_s=0.01, snapshots=str(tmp_path), snapshot_bytes=1)
    log = await memory_log(partitions=1)
    place, group = log.place(SESSIONS, 0), log.group("assembler.snapshots")
    write(log, 0, claim(7), open_(), request(1, (1, 2)), span(1, 2, 0, (5, 6), (-1.0, -2.0), 0))

    async def announced() -> int:
        return (await log.broker.committed(group, [place])).get(place, (0, ""))[0]

    async with running(role(settings), log):
        with anyio.fail_after(20):
            while await announced() < 4:
                await anyio.sleep(0.002)
    with capture_logs() as said:
        async with running(role(settings), log):
            write(log, 0, span(1, 2, 2, (7,), (-3.0,), 1, "stop"), close(1))
            await until(lambda: closes(log, 0) == [5], "the trajectory")
    assert {"event": "assigned", "log_level": "info", "partitions": [0], "by_snapshot": [0]} in said
    expected = trajectory_of(session_of(*(entry.record for entry in entries(log, SESSIONS, Record))))
    assert records(log, TRAJECTORIES, Trajectory) == [expected]


async def test_members_share_the_partitions_and_fold_anew_what_they_get() -> None:
    log = await memory_log(partitions=4)
    for partition in range(4):
        write(log, partition, claim(1), open_(), open_(), close(1))
    async with running(role(QUICK), log):
        await until(lambda: all(closes(log, partition) for partition in range(4)), "one each")
        async with running(role(QUICK), log):
            for partition in range(4):
                write(log, partition, close(2))
            await until(lambda: all(counted(closes(log, partition)) == [3, 4] for partition in range(4)), "two each")
        for partition in range(4):
            write(log, partition, open_(), close(5))
        await until(lambda: all(counted(closes(log, partition)) == [3, 4, 6] for partition in range(4)), "three each")


async def test_a_silent_session_is_closed_and_then_assembled() -> None:
    log = await memory_log(partitions=1)
    write(log, 0, claim(1), open_())
    async with running(role(AssemblerSettings(commit_s=0.01, idle_s=0.05)), log):
        await until(lambda: closes(log, 0) == [2], "a trajectory")
    assert records(log, SESSIONS, Close) == [Close(session=1, outcome="idle", idle=True, seen=1)]
    assert records(log, TRAJECTORIES, Trajectory)[0].outcome == "idle"


async def test_where_retention_passed_its_position_it_takes_the_owners() -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    write(log, 0, claim(1), open_(), close(1), claim(4), open_(), close(4))
    broker.truncate(log.place(SESSIONS, 0), 2)
    await broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (4, Position(4, 4).metadata())})
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [5], "what the owners' Position reaches")


async def test_a_log_of_which_nothing_is_gone_is_read_from_its_start_wherever_the_owners_stand() -> None:
    log = await memory_log(partitions=1)
    write(log, 0, claim(1), open_(), close(1), open_(), close(3))
    await log.broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (5, Position(5, 1).metadata())})
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [2, 4], "both sessions")


async def test_an_offset_that_a_tool_committed_without_an_epoch_is_no_position() -> None:
    log = await memory_log(partitions=1)
    write(log, 0, claim(1), open_(), close(1), open_(), close(3))
    await log.broker.commit(log.group("assembler"), {log.place(SESSIONS, 0): (3, "")})
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [2, 4], "both sessions")


async def test_after_a_refused_commit_it_folds_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log(partitions=1)
    commit, refusals = Member.commit, [False]

    async def refuse_once(self: Member, offsets: Any) -> bool:
        return refusals.pop() if refusals else await commit(self, offsets)

    monkeypatch.setattr(Member, "commit", refuse_once)
    write(log, 0, claim(1), open_(), close(1))
    async with running(role(AssemblerSettings(commit_s=0.05)), log):
        await until_kept(log, 0, Position(3, 1))
    assert closes(log, 0) == [2, 2]


async def test_where_every_position_is_gone_nothing_counts_before_the_owners_reset() -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    for _ in range(3):
        append(log, GRANTS, 0, Grant(partition=0, node="n", incarnation="i"))
    write(log, 0, claim(1), open_(), close(1), open_(), close(3), claim(1, reset=True), open_(), close(6))
    broker.truncate(log.place(SESSIONS, 0), 2)
    async with running(role(QUICK), log):
        write(log, 0, claim(2, reset=True), open_(), close(9))
        await until(lambda: closes(log, 0) == [10], "the first session after the reset")
        await until_kept(log, 0, Position(11, 2))


async def test_a_position_that_an_owner_took_after_its_reset_does_not_pass_the_sessions_of_that_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = await memory_log(partitions=1)
    broker, read, looks = log.broker, Member.read, [0]
    assert isinstance(broker, MemoryBroker)
    for _ in range(3):
        append(log, GRANTS, 0, Grant(partition=0, node="n", incarnation="i"))
    write(log, 0, claim(1), open_(), close(1))
    broker.truncate(log.place(SESSIONS, 0), 3)

    async def read_late(self: Member, *, timeout_s: float, limit: int = 1000) -> Sequence[Any]:
        looks[0] += 1
        await anyio.sleep(0.005)
        return [] if looks[0] < 20 else await read(self, timeout_s=timeout_s, limit=limit)

    monkeypatch.setattr(Member, "read", read_late)
    async with running(role(QUICK), log):
        await until(lambda: looks[0], "its first read")
        write(log, 0, claim(2, reset=True), open_(), close(4))
        await broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (6, Position(6, 2).metadata())})
        await until(lambda: closes(log, 0) == [5], "the session that ended before the owner's Position")


async def test_without_a_reset_it_begins_at_a_position_that_comes_late() -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    append(log, GRANTS, 0, Grant(partition=0, node="n", incarnation="i"))
    write(log, 0, claim(0), open_(), open_())
    broker.truncate(log.place(SESSIONS, 0), 1)
    async with running(role(QUICK), log):
        await broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (1, Position(1, 0).metadata())})
        write(log, 0, close(2))
        await until(lambda: closes(log, 0) == [3], "what the late Position reaches")


async def test_records_that_retention_takes_before_they_are_read_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim 2 is among them: only a Position behind it says that its spans count."""
    log = await memory_log(partitions=1)
    broker, read, looks, is_slow = log.broker, Member.read, [0], [False]
    assert isinstance(broker, MemoryBroker)

    async def read_late(self: Member, *, timeout_s: float, limit: int = 1000) -> Sequence[Any]:
        looks[0] += is_slow[0]
        await anyio.sleep(0.005)
        return [] if is_slow[0] else await read(self, timeout_s=timeout_s, limit=limit)

    monkeypatch.setattr(Member, "read", read_late)
    write(log, 0, claim(1), open_())
    async with running(role(QUICK), log):
        await until_kept(log, 0, Position(1, 1))
        is_slow[0] = True
        await until(lambda: looks[0] > 1, "no read is under way")
        sampled = span(4, 5, 0, (9,), (-1.0,), 0, "stop")
        write(log, 0, claim(7), close(1), open_(), request(4, (1,)), sampled, close(4))
        await broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (4, Position(4, 7).metadata())})
        broker.truncate(log.place(SESSIONS, 0), 4)
        is_slow[0] = False
        await until(lambda: closes(log, 0) == [7], "the session after the hole")
    (found,) = records(log, TRAJECTORIES, Trajectory)
    assert [node.end for node in found.nodes] == ["stop"]


async def test_records_of_an_assignment_that_began_while_they_were_read_are_not_taken_for_those_of_the_last_one() -> None:
    log = await memory_log(partitions=2)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    for partition in range(2):
        write(log, partition, claim(7), open_(), close(1))
    other = broker.join(log.group("assembler"), [log.name(SESSIONS)])
    async with running(role(QUICK), log):
        (theirs,) = (place.partition for place in other.assignment())
        await until_kept(log, 1 - theirs, Position(3, 7))
        await anyio.wait_all_tasks_blocked()  # it reads
        broker.leave(other)
        await until(lambda: closes(log, theirs) == [2], "the session that the other one left behind")


async def test_positions_that_do_not_move_are_committed_again() -> None:
    log = await memory_log(partitions=1)
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    write(log, 0, claim(7), open_())
    async with running(role(AssemblerSettings(commit_s=0.01, recommit_s=0.05)), log):
        await until_kept(log, 0, Position(1, 7))
        broker._groups["test.assembler"].offsets.clear()  # Kafka let it expire
        await until_kept(log, 0, Position(1, 7))


async def test_a_session_that_cannot_be_assembled_is_empty_and_buried_and_the_next_ones_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(session: SessionState) -> Trajectory:
        if session.offset == 1:
            raise KeyError("a defect")
        return trajectory_of(session)

    monkeypatch.setattr("workers.assembler.service.trajectory_of", fragile)
    log = await memory_log()
    write(log, 0, claim(7), open_(member=3), open_(), request(2, (1,)), span(2, 3, 0, (5,), (-1.0,), 0, "stop"), close(1), close(2))
    async with running(role(QUICK), log):
        await until(lambda: closes(log, 0) == [5, 6], "two trajectories")
    broken, whole = records(log, TRAJECTORIES, Trajectory, 0)
    assert (broken.session, broken.member, broken.nodes, len(whole.nodes)) == (1, 3, [], 1)
    (letter,) = records(log, DEADLETTER, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == ("sessions", 0, 1)
    assert "KeyError" in letter.reason
