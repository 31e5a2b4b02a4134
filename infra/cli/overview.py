"""What `status` knows of a namespace: gathered from the log and from committed offsets, in a few short reads.

Invariant: it only reads. Figures are what the log says, never what a process says of itself on the side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeVar

import anyio

from infra.cli.fleet import Fleet
from infra.cli.margins import gather_margins
from infra.cli.peek import now_ms, open_fleet, read_from, read_last
from infra.cli.redrive import read_letters
from schemas.record import Record
from schemas.task import Task
from schemas.topics import DEADLETTER, SESSIONS, TASKS, TRAINING, TRAJECTORIES, Topic
from schemas.training import Consumed, Drops, Run, Step, WeightVersion
from streams.broker import Place
from streams.log import Log
from workers.retention import Margin

GROUPS: Mapping[str, Topic] = {"assembler": SESSIONS, "reward": TRAJECTORIES, "agents": TASKS}
"""Consumer groups, by the role that they belong to, and what each reads."""

R = TypeVar("R", bound=Record)

MANY_LETTERS = 2000

RECENT, ALL = 64, 1 << 62
"""Offsets of `training`: the recent ones nearly always hold the last Step and the last version."""


class Lag(NamedTuple):
    """How far a role's commits are behind the end of its topic, over all partitions, in offsets."""

    role: str
    topic: str
    committed: int
    end: int

    @property
    def behind(self) -> int:
        """Offsets between the commits and the ends."""
        return self.end - self.committed


class Decided(NamedTuple):
    """What became of training sessions in the newest records of `training`: `steps` Steps, `trained` sessions, `dropped` ones by reason."""

    steps: int = 0
    trained: int = 0
    dropped: Mapping[str, int] = MappingProxyType({})


NOTHING = Decided()


@dataclass(frozen=True, slots=True)
class Training:
    """The trainer's last words. `in_flight` are training groups given out and not decided; `version` −1: none was published.

    `consumed`: how far it has read; None before its first Step or Drops record. `decided` is what became of sessions of late.
    """

    run: str
    step: int
    version: int
    in_flight: int
    reward: float | None
    consumed: Consumed | None = None
    decided: Decided = NOTHING


@dataclass(frozen=True, slots=True)
class Overview:
    """All of it."""

    fleet: Fleet
    training: Training
    lags: list[Lag]
    dead_letters: int
    """Open ones: neither re-driven nor discarded."""
    margins: list[Margin] = field(default_factory=list)
    """Readers that retention comes near to."""


async def gather(log: Log) -> Overview:
    """Read what stands now.

    :raises TopicMismatch: the namespace has no topics.
    :raises BrokerUnavailable: the broker does not answer.
    """
    found: dict[str, Lag] = {}

    async def look(role: str, topic: Topic) -> None:
        found[role] = await lag(log, role, topic)

    async with open_fleet(log) as reader, anyio.create_task_group() as tasks:
        for role, topic in GROUPS.items():
            tasks.start_soon(look, role, topic)
        training, letters = await last_training(log), await _dead_letters(log)
        margins = await gather_margins(log, training.consumed, now_ms())
    return Overview(reader.fleet, training, [found[role] for role in GROUPS], letters, margins)


async def lag(log: Log, role: str, topic: Topic) -> Lag:
    """How far one group is behind. Where nothing was committed, it begins at the first record left."""
    places = await log.places(topic)
    starts, ends = await log.broker.starts(places), await log.broker.ends(places, committed=topic.committed)
    committed = await log.broker.committed(log.group(role), places)
    at = {place: max(starts[place], committed[place][0] if place in committed else 0) for place in places}
    return Lag(role, topic.name, sum(at.values()), sum(ends.values()))


async def last_training(log: Log) -> Training:
    """Where the run stands."""
    records = [entry.record for entry in await read_last(log, TRAINING, RECENT)]
    if _last(records, Step) is None or _last(records, WeightVersion) is None:
        records = [entry.record for entry in await read_last(log, TRAINING, ALL)]
    run, step, version = _last(records, Run), _last(records, Step), _last(records, WeightVersion)
    consumed = [record.consumed for record in records if isinstance(record, Step | Drops)]
    return Training(
        run=run.run if run else "",
        step=step.step if step else 0,
        version=version.version if version else -1,
        in_flight=await _in_flight(log, consumed[-1] if consumed else Consumed()),
        reward=step.metrics.get("reward_mean") if step else None,
        consumed=consumed[-1] if consumed else None,
        decided=decided_of(records),
    )


def decided_of(records: Sequence[Record]) -> Decided:
    """What these records of `training` decide."""
    steps = [record for record in records if isinstance(record, Step)]
    reasons = Counter(drop.reason for record in records if isinstance(record, Step | Drops) for drop in record.drops)
    return Decided(len(steps), sum(len(step.plan.places) for step in steps), dict(reasons.most_common()))


async def _in_flight(log: Log, consumed: Consumed) -> int:
    """Training groups in `tasks` that the trainer has not decided; it says itself from where they may stand."""
    starts = await log.broker.starts(await log.places(TASKS))
    offsets = {place.partition: max(start, consumed.tasks.get(place.partition, 0)) for place, start in starts.items()}
    records = [entry.record for entry in await read_from(log, TASKS, offsets)]
    groups = {record.group for record in records if isinstance(record, Task) and record.purpose == "train"}
    return len({group for group in groups if group >= consumed.groups_below} - set(consumed.groups))


async def _dead_letters(log: Log) -> int:
    """The open ones; where there are too many records to read them all in a short look, all records."""
    place = Place(log.name(DEADLETTER), 0)
    count = (await log.broker.ends([place]))[place] - (await log.broker.starts([place]))[place]
    return count if count > MANY_LETTERS else len((await read_letters(log)).cases())


def _last(records: Sequence[Record], kind: type[R]) -> R | None:
    return next((record for record in reversed(records) if isinstance(record, kind)), None)
