"""A rollout worker: one node, its engine, and the partitions that it is granted.

Its tasks: fold and act (`own`), write what the engine samples (`emit`, `flush_due`), load versions in their order (`follow_weights`), say
that it lives while its engine makes progress (`report`), keep Positions (`commit`) and snapshots (`keep_snapshots`). A clean stop gives
everything back and says so.

A node tagged both ways follows its Role, too. Invariants: its engine sleeps only when nothing is held any more, and its status says
`asleep` only then; it holds nothing, and wakes for no version, while its last Role keeps it from generating; after that it serves the
newest version only (R8).
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import anyio
import structlog
from anyio.abc import TaskStatus

from schemas import grant
from schemas.errors import EngineError, NoProgress
from schemas.identity import Position
from schemas.node import NodeStatus, State
from schemas.record import Record
from schemas.topics import GRANTS, NODES, SESSIONS, TRAINING
from schemas.training import WeightVersion
from streams.codec import Entry
from streams.failpoint import failpoint
from streams.log import Log, LogReader, RecordWriter
from streams.service import Role, Watch
from streams.table import Table, open_table
from workers.positions import ROLLOUT_GROUP, commit_positions
from workers.rollout.duty import alternates, is_on_duty
from workers.rollout.engines.base import Engine
from workers.rollout.owner import Owner
from workers.rollout.settings import RolloutSettings
from workers.rollout.spans import SpanBuffers
from workers.snapshot_store import SnapshotKeeper, SnapshotStore

POLL_S = 0.05
"""Longest wait for records of `sessions`: how late a new Grant may be noticed."""
WEIGHTS_S = 1.0
LEAVE_S = 8.0

logger = structlog.get_logger()


def role(settings: RolloutSettings) -> Role:
    """The rollout role with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        async with _open_worker(settings, log, watch) as worker, anyio.create_task_group() as tasks:
            tasks.start_soon(worker.emit)
            tasks.start_soon(worker.flush_due)
            tasks.start_soon(worker.follow_weights)
            tasks.start_soon(worker.follow_grants)
            tasks.start_soon(worker.report)
            tasks.start_soon(worker.commit)
            tasks.start_soon(worker.keeper.run)
            tasks.start_soon(worker.keep_snapshots)
            task_status.started()
            await worker.own()

    return run


def open_engine(settings: RolloutSettings) -> AbstractAsyncContextManager[Engine]:
    """The engine that the settings name. Imports torch only where it runs."""
    if settings.engine == "paced":
        from workers.rollout.engines.paced import paced_engine

        return paced_engine(settings.paced_tokens_per_s, settings.paced_first_token_s)
    from workers.rollout.engines.torch import torch_engine

    return torch_engine(settings.model_dir, batch=settings.batch)


@asynccontextmanager
async def _open_worker(settings: RolloutSettings, log: Log, watch: Watch) -> AsyncIterator[Worker]:
    async with (
        open_engine(settings) as engine,
        log.writer() as writer,
        open_table(log, GRANTS) as grants,
        log.follow(SESSIONS, {}) as sessions,
    ):
        buffers = SpanBuffers(settings.stream_tokens, settings.flush_s)
        snapshots = SnapshotStore(log, settings.snapshots, ROLLOUT_GROUP)
        owner = Owner(log, settings.node, secrets.token_hex(8), engine, writer, sessions, buffers, snapshots)
        worker = Worker(settings, log, watch, engine, writer, grants, sessions, owner, buffers, SnapshotKeeper(snapshots))
        try:
            yield worker
        finally:
            with anyio.move_on_after(LEAVE_S, shield=True):
                await worker.leave()


@dataclass
class Worker:
    """The tasks of one rollout node; each runs until it is cancelled."""

    settings: RolloutSettings
    log: Log
    watch: Watch
    engine: Engine
    writer: RecordWriter
    grants: Table
    sessions: LogReader
    owner: Owner
    buffers: SpanBuffers
    keeper: SnapshotKeeper
    _grants_changed: bool = True
    _grants_done: int = 0
    _is_told: bool = False
    _is_on_duty: bool = True
    _is_asleep: bool = False
    _tokens: int = -1
    _progress_at: float = 0.0

    def __post_init__(self) -> None:
        self._is_on_duty = self._duty()

    async def own(self) -> None:
        """Fold the held partitions, run their requests, follow the grants. One task does all of it: no record meets a foreign fold."""
        while True:
            if self._grants_changed:
                self._grants_changed = False
                await self._obey()
            await self.owner.take_in(await self.sessions.read(timeout_s=POLL_S))

    async def _obey(self) -> None:
        """Give up and take partitions as `grants` says now. What nobody may generate here, nobody holds."""
        position, was_on_duty = self.grants.position, self._is_on_duty
        is_on_duty = self._duty()
        if was_on_duty and not is_on_duty:
            failpoint("rollout.before_release")
        changed = await self.owner.reconcile(self.grants.rows if is_on_duty else {})
        self._grants_done, self._is_on_duty = position, is_on_duty
        if changed or self._is_told:
            self._is_told = False
            await self._say(self._state())

    async def emit(self) -> None:
        """Write what the engine samples."""
        async for emissions in self.engine.emissions():
            await self.owner.absorb(emissions, anyio.current_time())
        raise EngineError("the engine ended by itself")

    async def flush_due(self) -> None:
        """Write tokens that have waited long enough."""
        while True:
            await anyio.sleep(self.buffers.until_due_s(anyio.current_time()))
            await self.owner.write(self.buffers.due(anyio.current_time()))

    async def follow_grants(self) -> None:
        """Keep the table of grants."""
        while True:
            if entries := await self.grants.update(timeout_s=1.0):
                self._grants_changed = True
                self._is_told |= any(isinstance(entry.record, grant.Role) and entry.record.node == self.owner.node for entry in entries)

    async def follow_weights(self) -> None:
        """Load the newest version, whenever there is one. Announcing is not acting: the engine takes it at its own barrier (R8).

        Off duty the engine sleeps, and versions pass it by.

        The first is the newest at the end of the log: a worker that starts must not serve what was replaced long ago. One that was held up
        for so long that the files are gone takes the newest instead.
        """
        async with self.log.follow_all(TRAINING) as training:
            entries = await training.read_to_end([0])
            version = _newest(entries)
            if version is None:
                logger.warning("no version is announced yet: a trainer begins the run with version 0")
            while True:
                version = _newest(entries) or version
                try:
                    await self._keep_up(version)
                    entries = await training.read(timeout_s=self._patience_s)
                except EngineError:
                    entries = await training.read_to_end([0])
                    if not _may_be_gone(version, entries):
                        raise

    async def report(self) -> None:
        """Say once a period that this node lives, as long as its engine makes progress.

        :raises NoProgress: the engine has work and sampled nothing for the watch's limit.
        """
        while True:
            if self._is_stalled():
                logger.error("the engine has work and samples nothing: not reported as alive")
            else:
                await self._say(self._state())
            await anyio.sleep(self.settings.report_s)

    async def commit(self) -> None:
        """Keep Positions where they moved, and all of them now and then: Kafka lets old commits expire (R5)."""
        kept: dict[int, Position] = {}
        renew_at = anyio.current_time() + self.settings.recommit_s
        while True:
            await anyio.sleep(self.settings.commit_s)
            if anyio.current_time() >= renew_at:
                kept, renew_at = {}, anyio.current_time() + self.settings.recommit_s
            moved = {partition: position for partition, position in self.owner.positions().items() if kept.get(partition) != position}
            if moved:
                await commit_positions(self.log, moved)
                kept.update(moved)

    async def keep_snapshots(self) -> None:
        """Look for partitions that a new owner would read for long."""
        while True:
            await anyio.sleep(self.settings.commit_s)
            self.owner.keep_snapshots(self.keeper, self.settings.snapshot_bytes)

    async def leave(self) -> None:
        """Give everything back: partial spans are written, Positions kept, and the last word is `left`."""
        positions = self.owner.positions()
        await self.owner.release(list(self.owner.holdings))
        if positions:
            await commit_positions(self.log, positions)
        self._grants_done = self.grants.position
        await self._say("left")
        await self.writer.flush()

    async def _keep_up(self, version: WeightVersion | None) -> None:
        """Sleep off duty, else be at `version`: one task does both, so that neither meets the other."""
        if not self._is_on_duty and not self._is_asleep and not self.owner.holdings:
            await self._sleep()
        elif self._is_on_duty and self._is_asleep and version is None:
            self._is_asleep = False
        elif self._is_on_duty and version is not None and version.version > self.engine.version:
            await self._load(version)

    async def _sleep(self) -> None:
        with self.watch.waiting_for("the engine to fall asleep"):
            await self.engine.sleep()
        failpoint("rollout.asleep")
        self._is_asleep = True
        logger.info("asleep")
        await self._say(self._state())

    async def _load(self, version: WeightVersion) -> None:
        with self.watch.waiting_for(f"the engine to load version {version.version}"):
            await self.engine.load(version)
        if self._is_asleep:
            failpoint("rollout.awake")
        self._is_asleep = False
        logger.info("serving", version=version.version)
        await self._say(self._state())

    def _duty(self) -> bool:
        return is_on_duty(self.grants.rows, self.owner.node, self.settings.tags)

    @property
    def _patience_s(self) -> float:
        """Longest wait for a version. A node that alternates looks at its Role as often."""
        return POLL_S if alternates(self.settings.tags) else WEIGHTS_S

    def _state(self) -> State:
        if self._is_asleep:
            return "asleep"
        return "serving" if self.engine.version >= 0 else "loading"

    async def _say(self, state: State) -> None:
        load = self.engine.load_now()
        status = NodeStatus(
            node=self.owner.node, incarnation=self.owner.incarnation, tags=self.settings.tags, state=state, capacity=self.settings.capacity,
            version=self.engine.version, grants_seen=self._grants_done, partitions=sorted(self.owner.holdings),
            running=load.running, waiting=load.waiting, tokens=load.tokens,
            own_s=round(self.owner.takeover.own_s, 3), first_token_s=round(self.owner.takeover.first_token_s, 3),
        )
        await self.writer.send(NODES, 0, status)

    def _is_stalled(self) -> bool:
        now, load = anyio.current_time(), self.engine.load_now()
        has_work = load.running or (load.waiting and self.engine.version >= 0)  # before the first load everything waits
        if load.tokens != self._tokens or not has_work:
            self._tokens, self._progress_at = load.tokens, now
        stalled_s = now - self._progress_at
        if stalled_s > self.watch.limit_s:
            raise NoProgress(f"the engine has {load.running + load.waiting} requests and sampled nothing for {stalled_s:.0f} s")
        return stalled_s > self.settings.stall_s


def _newest(entries: Sequence[Entry[Record]]) -> WeightVersion | None:
    versions = [entry.record for entry in entries if isinstance(entry.record, WeightVersion)]
    return versions[-1] if versions else None


def _may_be_gone(version: WeightVersion | None, later: Sequence[Entry[Record]]) -> bool:
    """Whether the log says that the files of `version` may have been removed."""
    newest = _newest(later)
    return version is not None and newest is not None and newest.files_from > version.version
