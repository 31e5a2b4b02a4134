"""Where a trainer stands: `training` read to its end, and the weights made again from the newest checkpoint (R7).

Invariants:
- a checkpoint is used only if its weights are in force after a committed Step (or are version 0), so a Step that was never committed
  leaves no trace;
- the Steps since are trained again from the log: the plans as they stand, the trajectories at the plans' places;
- if the weights are then not those in force (other hardware, kernels that are not deterministic), the log says so by a version of its own.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field

import anyio
import msgspec
import structlog

from schemas.errors import CorruptRecord, LogError, UsageError
from schemas.record import Record
from schemas.topics import TRAJECTORIES
from schemas.training import Consumed, Drops, Place, Run, Step, WeightFile, WeightVersion
from schemas.trajectory import Trajectory
from streams.cas import CasLog
from streams.codec import Entry
from streams.log import Log, LogReader
from trainer.attempts import REASON
from trainer.retain import files_from
from trainer.settings import TrainerSettings
from trainer.trainee import Bench, Trained, Trainee, Trains

__all__ = ["ARITHMETIC", "PARTITION", "Standing", "fold", "read_places", "recover", "train_again"]

ARITHMETIC = ("loss", "loss_settings", "optimizer")
"""The settings that decide what training makes of a plan: those that the run began with hold to its end."""

PARTITION = 0
"""`training` has one."""

READ_S = 20.0
"""How long the next trajectory of a plan may take to arrive."""

logger = structlog.get_logger()


@dataclass(slots=True)
class Standing:
    """What `training` says up to its end. `run` and `initial` are how it began.

    `in_force` maps each step to the digest of the weights after it, 0 to that of version 0; `moments` to that of the optimizer. `files` are
    those of each version, as far as they were not removed by this process; those of versions 1 … `files_from` − 1 may be gone. `given_up`
    counts the batches that ended too many trainers.
    """

    step: int = 0
    version: int = -1
    consumed: Consumed = field(default_factory=Consumed)
    run: Run | None = None
    initial: WeightVersion | None = None
    in_force: dict[int, str] = field(default_factory=dict)
    moments: dict[int, str] = field(default_factory=dict)
    files: dict[int, list[WeightFile]] = field(default_factory=dict)
    files_from: int = 0
    given_up: int = 0

    def apply(self, record: Record) -> None:
        """The next record. A version of a step that published another one before was made by other arithmetic: it is in force."""
        if isinstance(record, Step):
            self.step, self.consumed = record.step, record.consumed
            self.in_force[record.step], self.moments[record.step] = record.weights_sha256, record.optimizer_sha256
        elif isinstance(record, Drops):
            self.consumed = record.consumed
            self.given_up += any(dropped.reason == REASON for dropped in record.drops)
        elif isinstance(record, WeightVersion):
            self.version, self.files_from = record.version, record.files_from
            self.files[record.version] = record.files
            self.in_force[record.step or 0] = record.weights_sha256
            if record.again_from is not None:
                self.moments[record.step or 0] = record.optimizer_sha256
            self.initial = self.initial or record
        elif isinstance(record, Run):
            self.run = record

    def announcing(self, version: WeightVersion, keep: int) -> WeightVersion:
        """`version` with what it says of older files; `keep` as for `trainer.retain.files_from`."""
        return msgspec.structs.replace(version, files_from=files_from(version.version, self.files_from, keep))


def fold(records: Iterable[Entry[Record]]) -> Standing:
    """The standing after these records."""
    standing = Standing()
    for entry in records:
        standing.apply(entry.record)
    return standing


async def recover(log: Log, cas: CasLog, trainee: Trainee, bench: Bench, settings: TrainerSettings) -> Standing:
    """Bring `trainee` to the weights in force; the first trainer of a namespace begins the run.

    :raises Superseded: another trainer wrote meanwhile.
    :raises UsageError: loss or optimizer are set otherwise than when the run began.
    :raises LogError: a Step cannot be trained again: a trajectory is gone or unreadable.
    :raises RetentionPassed: trajectories since the newest checkpoint have expired.
    """
    standing = fold(cas.history)
    if standing.initial is None:
        return await _begin(cas, trainee, bench, settings)
    _require_same_arithmetic(standing.run, settings)
    step = await bench.do(trainee.restore, standing.in_force)
    if step is None:
        await bench.do(trainee.begin, standing.initial)
        step = 0
    again = [entry.record for entry in cas.history if isinstance(entry.record, Step) and entry.record.step > step]
    cas.history.clear()
    logger.info("recovering", checkpoint=step, steps=standing.step, version=standing.version)
    other = await _difference(log, trainee, bench, again, standing)
    if other is not None:
        published = await bench.do(trainee.publish, standing.version + 1, standing.step)
        version = msgspec.structs.replace(
            standing.announcing(published, settings.keep_versions), again_from=step, optimizer_sha256=other.optimizer_sha256,
            numerics=other.numerics,
        )  # fmt: skip
        await cas.write([(PARTITION, version)])
        standing.apply(version)
        logger.warning("going on from weights that differ from the log", version=version.version, step=standing.step)
    if again:
        await bench.do(trainee.keep, standing.step, standing.version, standing.in_force)
    return standing


def _require_same_arithmetic(run: Run | None, settings: TrainerSettings) -> None:
    """Steps are trained again, here and by auditors, with the settings that the run began with."""
    now = settings.model_dump(mode="json")
    for name in ARITHMETIC:
        if run is not None and name in run.settings and run.settings[name] != now[name]:
            said = f"trainer.{name} is {now[name]}, the run began with {run.settings[name]}"
            raise UsageError(f"{said}: keep that, or begin a new namespace")


async def _begin(cas: CasLog, trainee: Trainee, bench: Bench, settings: TrainerSettings) -> Standing:
    initial = await bench.do(trainee.begin, None)
    run = Run(run=settings.run, settings=settings.model_dump(mode="json"), started_ms=time.time_ns() // 1_000_000)
    await cas.write([(PARTITION, run), (PARTITION, initial)])
    standing = Standing()
    standing.apply(initial)
    return standing


async def train_again(log: Log, trainee: Trains, bench: Bench, steps: Iterable[Step]) -> AsyncIterator[tuple[Step, Trained]]:
    """The updates of committed Steps once more, from where `trainee` stands; each Step with what came of it.

    :raises LogError: a trajectory is gone or unreadable.
    :raises RetentionPassed: a trajectory has expired.
    """
    for step in steps:
        trajectories = await read_places(log, step.plan.places)
        yield step, await bench.do(trainee.train, step.plan, trajectories)


async def _difference(log: Log, trainee: Trainee, bench: Bench, steps: Sequence[Step], standing: Standing) -> Trained | None:
    """Train `steps` again; what came of the last one where that is not in force, else None."""
    other = None
    async for step, trained in train_again(log, trainee, bench, steps):
        in_force = standing.in_force[step.step], standing.moments[step.step]
        other = trained if (trained.weights_sha256, trained.optimizer_sha256) != in_force else None
        if other is not None:
            logger.warning("a step trained again differs", step=step.step, numerics_differ=trained.numerics != step.numerics)
    return other


async def read_places(log: Log, places: Sequence[Place]) -> list[Trajectory]:
    """The trajectories at these places, in their order.

    :raises LogError: one is not there, or is of another session.
    :raises RetentionPassed: one has expired.
    """
    wanted = {(place.partition, place.offset): place.session for place in places}
    found: dict[tuple[int, int], Trajectory] = {}
    first = {partition: min(offset for other, offset in wanted if other == partition) for partition, _ in wanted}
    last = {partition: max(offset for other, offset in wanted if other == partition) for partition, _ in wanted}
    async with log.follow(TRAJECTORIES, first) as reader:
        while last:
            await _read_some(reader, wanted, found)
            for partition in [each for each in last if reader.position(each) > last[each]]:
                del last[partition]
                reader.remove(partition)
    if missing := sorted(wanted.keys() - found.keys()):
        raise LogError(f"trajectory {missing[0][0]}-{missing[0][1]} of a committed Step cannot be read")
    return [found[place.partition, place.offset] for place in places]


async def _read_some(reader: LogReader, wanted: dict[tuple[int, int], int], found: dict[tuple[int, int], Trajectory]) -> None:
    began = anyio.current_time()
    entries = await reader.read(timeout_s=READ_S)
    if not entries and anyio.current_time() - began >= READ_S:
        raise LogError(f"trajectories of a committed Step did not come within {READ_S:.0f} s")
    for entry in entries:
        session = wanted.get((entry.partition, entry.offset))
        if session is None or not isinstance(entry.record, Trajectory):
            continue
        if entry.record.session != session:
            raise CorruptRecord(f"trajectory {entry.partition}-{entry.offset} is of session {entry.record.session}, not {session}")
        found[entry.partition, entry.offset] = entry.record
