"""The scheduler's service: ticks, reads what nodes say, writes what `decide` answers, all changes of a round in one transaction.

Invariants: one Tick is in flight, and Ticks are at least `tick_s` apart; a change is made only from a view that holds every Grant committed
before it (cas), so of two schedulers one ends with Superseded and nothing is lost: while none runs, the grants that stand go on. `training`
is read only where a trainer steps on nodes that generate, too; without one no Role is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import anyio
import structlog
from anyio.abc import TaskStatus

from schemas import grant
from schemas.errors import Superseded
from schemas.node import Tick
from schemas.record import Record
from schemas.topics import GRANTS, NODES, SESSIONS, TRAINING
from streams.cas import CasLog, open_cas
from streams.failpoint import failpoint
from streams.log import Log, RecordWriter
from streams.service import Role, Watch
from streams.table import Table, open_table
from workers.scheduler.crew import Crew
from workers.scheduler.decide import Change, decide
from workers.scheduler.measures import Measures
from workers.scheduler.roster import Roster
from workers.scheduler.settings import SchedulerSettings
from workers.scheduler.view import HeldGrant, View

LEAST_GAP_S = 0.05
"""Between two decisions: a thousand nodes that report each second are looked at twenty times, not a thousand times."""

logger = structlog.get_logger()


def role(settings: SchedulerSettings) -> Role:
    """The scheduler with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        partitions = len(await log.places(SESSIONS))
        async with (
            log.writer() as writer, open_cas(log, GRANTS) as grants, open_table(log, NODES) as nodes, anyio.create_task_group() as tasks,
        ):  # fmt: skip
            scheduler = Scheduler(settings, watch, writer, grants, nodes, partitions)
            scheduler.read_history()
            tasks.start_soon(scheduler.follow_training, log)
            task_status.started()
            await scheduler.run()

    return run


@dataclass
class Scheduler:
    """One scheduler's life. Not for concurrent use."""

    settings: SchedulerSettings
    watch: Watch
    writer: RecordWriter
    grants: CasLog
    nodes: Table
    partitions: int
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    _held: dict[int, HeldGrant] = field(default_factory=dict)
    _decided_at_s: float = 0.0

    def __post_init__(self) -> None:
        self.roster = Roster(self.name, self.settings.dead_ticks)
        self.measures = Measures(self.settings)
        self.has_hosts = anyio.Event()

    def read_history(self) -> None:
        """Take in what both topics hold."""
        for entry in sorted(self.nodes.rows.values(), key=lambda entry: entry.offset):
            self.roster.apply(entry.record, is_heard=False)
        self._keep((entry.offset, entry.record) for entry in self.grants.history)
        self.grants.history.clear()

    async def run(self) -> None:
        """Tick and decide.

        :raises Superseded: another scheduler took over.
        """
        number = 0
        while True:
            number += 1
            next_s = anyio.current_time() + self.settings.tick_s
            await self.writer.send(NODES, 0, Tick(scheduler=self.name, number=number))
            with self.watch.waiting_for("its own Tick to come back"):
                while self.roster.ticks < number:
                    await self._round(timeout_s=0.5)
            while (left_s := next_s - anyio.current_time()) > 0:
                await self._round(timeout_s=left_s)

    async def follow_training(self, log: Log) -> None:
        """Measure steps, from the first trainer on that steps on nodes which generate, too."""
        await self.has_hosts.wait()
        async with log.follow_all(TRAINING) as training:
            while True:
                for entry in await training.read(timeout_s=1.0):
                    self.measures.trained(entry.record, self._train_capacity())

    async def _round(self, *, timeout_s: float) -> None:
        entries = await self.nodes.update(timeout_s=timeout_s)
        for entry in entries:
            self.roster.apply(entry.record, is_heard=True)
            self.measures.hear(entry.record, anyio.current_time())
        if self.roster.hosting:
            self.has_hosts.set()
        if self.roster.successor is not None:
            raise Superseded(f"scheduler {self.roster.successor} started later than this one ({self.name})")
        if entries:
            await anyio.sleep(max(0.0, self._decided_at_s + LEAST_GAP_S - anyio.current_time()))
            self._decided_at_s = anyio.current_time()
            await self._change(decide(self._view()))

    def _view(self) -> View:
        """The snapshot now, with what was measured up to it."""
        view = self.roster.view(self.partitions, self._held)
        self.measures.look(view, anyio.current_time())
        return replace(view, training=self.measures.training(self.roster.hosting, view.living()))

    def _train_capacity(self) -> float:
        """Of the nodes that train by their Role now."""
        crew = Crew(self.roster.view(self.partitions, self._held))
        return sum(crew.nodes[name].capacity for name in crew.nodes if crew.role(name) == "train")

    async def _change(self, changes: list[Change]) -> None:
        if not changes:
            return
        failpoint("scheduler.before_grant")
        offsets = await self.grants.write([(0, change) for change in changes])
        failpoint("scheduler.after_grant")
        self._keep(zip(offsets, changes, strict=True))
        for change in changes:
            if isinstance(change, grant.Role):
                self.measures.wrote(change, anyio.current_time())
        logger.info("granted", changes=len(changes), first=changes[0].reason, epoch=offsets[-1])

    def _keep(self, records: Iterable[tuple[int, Record]]) -> None:
        for offset, record in records:
            if isinstance(record, grant.Grant):
                self._held[record.partition] = HeldGrant(offset, record)
            elif isinstance(record, grant.Role):
                self.roster.hold(offset, record)
