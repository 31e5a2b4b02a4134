"""The assembler's service: a member of the group `assembler` on `sessions` that writes one Trajectory for each ended session.

Invariants:
- the Trajectories of a partition are sent in Close order, into the same partition number of `trajectories`;
- the committed Position never passes a session that is open or whose Trajectory is not acknowledged: whoever takes over writes it (again,
  perhaps: readers ignore a Close offset that is not above the last one, R6);
- state belongs to one assignment: a member that lost a partition commits nothing for it, and one that gets it back folds it anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.abc import TaskStatus

from schemas.errors import BrokerUnavailable
from schemas.identity import Position
from schemas.record import Record
from schemas.topics import SESSIONS, TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.codec import Entry
from streams.failpoint import failpoint
from streams.log import Log, Member, RecordWriter
from streams.service import Role, Watch
from streams.writer import Receipt, WriterOptions
from workers.assembler.deadlines import Deadlines
from workers.assembler.partition import HeldPartition
from workers.assembler.settings import AssemblerSettings
from workers.assembler.start import GROUP, find_starts
from workers.assembler.trajectory import empty_trajectory_of, trajectory_of
from workers.ledger import SessionState
from workers.positions import ROLLOUT_GROUP, Start, shortened
from workers.retention import find_margins
from workers.snapshot_store import SnapshotKeeper, SnapshotStore

WRITER = WriterOptions(linger_ms=5, compress=True)
READ_S = 0.25
SETTLE_S = 1.0
"""How long reading may stop for the acknowledgements before a snapshot."""
LEAVE_S = 8.0
NO_GENERATION = -1

logger = structlog.get_logger()


def role(settings: AssemblerSettings) -> Role:
    """The assembler with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        async with log.writer(WRITER) as writer, log.join(SESSIONS, GROUP) as member, anyio.create_task_group() as tasks:
            store = SnapshotStore(log, settings.snapshots, GROUP)
            assembler = Assembler(settings, log, writer, member, store, SnapshotKeeper(store))
            tasks.start_soon(assembler.keeper.run)
            task_status.started()
            try:
                await assembler.run()
            finally:
                with anyio.move_on_after(LEAVE_S, shield=True):
                    await writer.flush()
                    await assembler.commit()

    return run


@dataclass
class Assembler:
    """One member's share of the partitions. Not for concurrent use. `keeper` writes the snapshots that are handed to it."""

    settings: AssemblerSettings
    log: Log
    writer: RecordWriter
    member: Member
    store: SnapshotStore
    keeper: SnapshotKeeper
    _generation: int = NO_GENERATION
    _held: dict[int, HeldPartition] = field(default_factory=dict)
    _looked_at_s: float = 0.0
    _committed_all_at_s: float = 0.0
    _warned_at_s: float = 0.0

    async def run(self) -> None:
        """Fold, write, commit; one task does all of it."""
        self._committed_all_at_s = self._warned_at_s = anyio.current_time()
        while True:
            if self.member.generation() != self._generation:
                await self._begin_assignment()
            entries = await self.member.read(timeout_s=min(READ_S, self.settings.commit_s))
            if self.member.generation() != self._generation:
                continue  # of another assignment: they are read again from where that one begins
            await self._take_all(entries)
            if anyio.current_time() - self._looked_at_s >= self.settings.commit_s:
                await self._look_after()

    async def commit(self) -> None:
        """Commit the Positions that moved; all of them once in a while. Refused: every state here may be somebody else's by now."""
        for held in self._held.values():
            if held.settle():
                failpoint("assembler.after_trajectory")
        moved = self._moved(everything=anyio.current_time() - self._committed_all_at_s >= self.settings.recommit_s)
        if not moved:
            return
        if not await self.member.commit({partition: (position.offset, position.metadata()) for partition, position in moved.items()}):
            self._generation, self._held = NO_GENERATION, {}
            return
        for partition, position in moved.items():
            self._held[partition].kept = position

    def _moved(self, *, everything: bool) -> dict[int, Position]:
        if everything:
            self._committed_all_at_s = anyio.current_time()
        positions = {partition: held.position() for partition, held in self._held.items()}
        return {
            partition: position for partition, position in positions.items()
            if position is not None and (everything or position != self._held[partition].kept)
        }

    async def _begin_assignment(self) -> None:
        """New folds for the partitions held now; once more if they changed meanwhile."""
        starts: dict[int, Start] = {}
        while self._generation != (generation := self.member.generation()):
            partitions = self.member.partitions()
            starts = await shortened(self.log, await find_starts(self.log, partitions), await self.store.find(partitions))
            self._held = {partition: self._begin(partition, start) for partition, start in starts.items()}
            self._generation = generation
        by_snapshot = sorted(partition for partition, start in starts.items() if start.snapshot is not None)
        logger.info("assigned", partitions=sorted(self._held), by_snapshot=by_snapshot)

    def _begin(self, partition: int, start: Start) -> HeldPartition:
        self.member.seek(partition, start.position.offset)
        if start.floor is not None:
            logger.error("retention passed every Position: nothing counts before a reset", partition=partition, floor=start.floor)
        return HeldPartition.begin(start, Deadlines(self.settings.idle_s, self.settings.max_age_s), anyio.current_time())

    async def _take_all(self, entries: list[Entry[Record]]) -> None:
        now_s = anyio.current_time()
        for entry in entries:
            held = self._held[entry.partition]
            if entry.offset > held.ledger.next and await self._retention_passed(entry.partition, held.ledger.next):
                self._generation = NO_GENERATION  # records were skipped: begin anew, from a Position that still stands
                return
            ended = held.take(entry, now_s)
            if ended is not None:
                failpoint("assembler.before_trajectory")
                held.sent(ended, await self._send(entry.partition, ended))

    async def _retention_passed(self, partition: int, position: int) -> bool:
        place = self.log.place(SESSIONS, partition)
        return (await self.log.broker.starts([place]))[place] > position

    async def _send(self, partition: int, session: SessionState) -> Receipt:
        return await self.writer.send(TRAJECTORIES, partition, await self._assembled(partition, session))

    async def _assembled(self, partition: int, session: SessionState) -> Trajectory:
        """The Trajectory; an empty one, and a dead letter, where this software cannot make it."""
        try:
            return trajectory_of(session)
        except Exception as error:  # a defect of this software: every assembler would end at this session, and at no other
            reason = f"no trajectory can be made of the session: {type(error).__name__}: {error}"
            logger.exception("a session cannot be assembled", partition=partition, session=session.offset)
            await self.log.bury_record(SESSIONS, Entry(partition, session.offset, 0, session.record), reason)
            return empty_trajectory_of(session)

    async def _look_after(self) -> None:
        """Close what is idle or too old, commit, and see to what comes now and then."""
        self._looked_at_s = now_s = anyio.current_time()
        for partition, held in self._held.items():
            for close in held.due(now_s):
                await self.writer.send(SESSIONS, partition, close)
        await self.commit()
        await self._keep_snapshots()
        if now_s - self._warned_at_s >= self.settings.look_s:
            self._warned_at_s = now_s
            await warn_of_retention(self.log, self._held)
        await self._begin_late()

    async def _begin_late(self) -> None:
        """Begin partitions that had no Position where one stands by now: a living owner that lost none writes no reset.

        Only behind what was read: before a Position that an owner took after its reset, sessions of that reset have ended.
        """
        waiting = [partition for partition, held in self._held.items() if held.ledger.floor is not None]
        for partition, start in (await find_starts(self.log, waiting)).items():
            if start.floor is None and start.position.offset <= self._held[partition].ledger.next:
                self._held[partition] = self._begin(partition, start)

    async def _keep_snapshots(self) -> None:
        """Hand over the fold of a partition that a new assembler would read for long; one at a time."""
        limit = self.settings.snapshot_bytes
        due = [partition for partition, held in self._held.items() if held.backlog.is_due(held.ledger, limit)]
        if not due or not self.keeper.is_free:
            return
        with anyio.move_on_after(SETTLE_S):
            await self.writer.flush()  # on a busy partition some Trajectory is always on its way
        for partition in due:
            self._held[partition].settle()
            snapshot = self._held[partition].snapshot(self.log.name(SESSIONS), partition)
            if snapshot is not None:
                self.keeper.take(snapshot, self._held[partition].backlog)
                return


async def warn_of_retention(log: Log, partitions: Iterable[int]) -> None:
    """A line for each Position of these partitions, this group's and the owners', that retention comes near to."""
    places = [log.place(SESSIONS, partition) for partition in partitions]
    try:
        readers = {
            group: {place.partition: offset for place, (offset, _) in (await log.broker.committed(log.group(group), places)).items()}
            for group in (GROUP, ROLLOUT_GROUP)
        }
        margins = await find_margins(log, SESSIONS, readers, time.time_ns() // 1_000_000)
    except BrokerUnavailable as error:
        logger.warning("how near retention is could not be asked", error=str(error))
        return
    for each in margins:
        logger.warning("retention comes near", warning=each.line(), partition=each.partition, left=each.left)
