"""A trainer on a broker in memory: logs to train from, a trainee without torch, and what is true of `training` afterwards."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskStatus

from schemas.record import Record
from schemas.score import Score
from schemas.task import Task
from schemas.topics import NODES, SCORES, TASKS, TRAINING, TRAJECTORIES, Topic
from schemas.training import Drops, Plan, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.codec import encode
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Watch
from streams.topics import ensure_topics
from tests.unit.trainer.trees import node
from trainer.service import role
from trainer.settings import TrainerSettings
from trainer.trainee import Trained, Trainee

NAMESPACE = "test."
PARTITIONS = 2
MEMBERS = 3
RULE = "rule"


Written = tuple[Topic, int, Record]
"""Topic, partition, record."""


class Crash(BaseException):
    """The process dies here."""


def trainer_settings(**changes: Any) -> TrainerSettings:
    """Two groups a step, no checkpoint, drops at once."""
    feed = {"groups_per_step": 2, "rules": {RULE: 1.0}, "staleness_bound": 99, "drops_deadline_s": 0.1, **changes.pop("feed", {})}
    return TrainerSettings.model_validate({"steps": 4, "recovery_s": 1e9, "feed": feed, **changes})


async def open_log() -> Log:
    broker = MemoryBroker()
    await ensure_topics(broker, NAMESPACE, PARTITIONS)
    return Log(broker, NAMESPACE, "trainer")


def append(log: Log, topic: Topic, partition: int, record: Record) -> int:
    """As an earlier process wrote it."""
    assert isinstance(log.broker, MemoryBroker)
    return log.broker.append(encode(log.name(topic), partition, record))


def groups_of_records(
    groups: int, *, first: int = 0, signal: bool = True, offsets: dict[int, int] | None = None, uneven: int = 0
) -> Iterator[Written]:
    """Groups of MEMBERS tasks, their sessions, each written twice, and a score for each. `offsets`: the next ones of `trajectories`.

    Every session samples three tokens, and `uneven` more than the one before it within two groups.
    """
    ends = offsets if offsets is not None else {}
    for number in range(first * MEMBERS, (first + groups) * MEMBERS):
        group, member = divmod(number, MEMBERS)
        partition = group % PARTITIONS
        yield TASKS, group % 16, Task(number=number, group=group, member=member, members=MEMBERS)
        tokens = [1 + (number + shift) % 17 for shift in range(3 + uneven * (number % (2 * MEMBERS)))]
        trajectory = Trajectory(
            session=2 * number, close=2 * number + 1, group=group, member=member,
            nodes=[node([3, 4, 5], tokens, logprobs=[-2.0 - 0.1 * member] * len(tokens))],
        )  # fmt: skip
        yield TRAJECTORIES, partition, trajectory
        yield TRAJECTORIES, partition, trajectory
        value = float(member == group % MEMBERS) if signal else 1.0
        yield SCORES, partition, Score(trajectory=ends.get(partition, 0), session=2 * number, rule=RULE, value=value)
        ends[partition] = ends.get(partition, 0) + 2


def write_groups(log: Log, groups: int, *, first: int = 0, signal: bool = True, uneven: int = 0) -> None:
    """`groups_of_records`, behind what `trajectories` holds."""
    assert isinstance(log.broker, MemoryBroker)
    ends = {partition: log.broker.log(log.place(TRAJECTORIES, partition)).end(committed=False) for partition in range(PARTITIONS)}
    for topic, partition, record in groups_of_records(groups, first=first, signal=signal, offsets=ends, uneven=uneven):
        append(log, topic, partition, record)


@dataclass
class Disk:
    """What outlives a process of the trainer: checkpoints by step, and which calls were made."""

    checkpoints: dict[int, str] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)


@dataclass
class PaperTrainee(Trainee):
    """Weights that are a digest of all plans so far: equal only if the same plans were trained in the same order."""

    disk: Disk
    salt: str = ""
    weights: str = "initial"

    def begin(self, initial: WeightVersion | None) -> WeightVersion:
        self.weights = "initial"
        return initial or self._version(0, None)

    def restore(self, committed: Mapping[int, str]) -> int | None:
        found = [step for step, weights in self.disk.checkpoints.items() if committed.get(step) == weights]
        if not found:
            return None
        self.weights = self.disk.checkpoints[max(found)]
        return max(found)

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        assert [each.session for each in trajectories] == [place.session for place in plan.places]
        self.disk.calls.append("train")
        self.weights = after(self.weights, plan, self.salt)
        return Trained(weights_sha256=self.weights, optimizer_sha256="", numerics={"salt": self.salt}, metrics={"loss": 0.5})

    def publish(self, version: int, step: int) -> WeightVersion:
        return self._version(version, step)

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        self.disk.checkpoints[step] = self.weights

    def _version(self, version: int, step: int | None) -> WeightVersion:
        return WeightVersion(version=version, step=step, files=[], weights_sha256=self.weights, tokenizer_sha256="t", template_sha256="t")


def after(weights: str, plan: Plan, salt: str = "") -> str:
    """The digest after one more plan."""
    return hashlib.sha256(weights.encode() + msgspec.msgpack.encode(plan) + salt.encode()).hexdigest()


async def run_trainer(log: Log, settings: TrainerSettings, trainee: Trainee) -> None:
    """One life, until all steps are done or it dies."""
    await role(settings, lambda _: trainee)(log, Watch(), task_status=anyio.TASK_STATUS_IGNORED)


async def start_trainer(
    log: Log, settings: TrainerSettings, trainee: Trainee, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
) -> None:
    """One life in a task of its own."""
    await role(settings, lambda _: trainee)(log, Watch(), task_status=task_status)


async def training(log: Log) -> list[Record]:
    async with log.follow_all(TRAINING) as reader:
        return [entry.record for entry in await reader.read_to_end([0])]


async def node_states(log: Log) -> list[Record]:
    async with log.follow_all(NODES) as reader:
        return [entry.record for entry in await reader.read_to_end([0])]


def decided(records: Sequence[Record]) -> list[tuple[int, int]]:
    """Partition and session of everything that was trained or dropped."""
    found = [drop.place for each in records if isinstance(each, Step | Drops) for drop in each.drops]
    found += [place for each in records if isinstance(each, Step) for place in each.plan.places]
    return [(place.partition, place.session) for place in found]


def require_once(records: Sequence[Record], *, groups: int) -> None:
    """Each of the sessions of `groups` groups is in exactly one Step or Drops, each token and member trained once, steps in a row."""
    steps = [each for each in records if isinstance(each, Step)]
    assert [step.step for step in steps] == list(range(1, len(steps) + 1))
    expected = [(group % PARTITIONS, 2 * (group * MEMBERS + member)) for group in range(groups) for member in range(MEMBERS)]
    assert sorted(decided(records)) == sorted(expected)
    tokens = Counter(
        (step.plan.places[row.place].session, node, index)
        for step in steps for row in step.plan.rows for node in row.nodes
        for begin, end in zip(row.train_from, row.train_to, strict=True) for index in range(begin, end)
    )  # fmt: skip
    assert set(tokens.values()) <= {1}
    assert len(tokens) == 3 * sum(len(step.plan.places) for step in steps)


def require_versions(records: Sequence[Record]) -> None:
    """Every Step starts from the newest version and publishes the next one, with its digest."""
    newest = -1
    announced = {each.version: each for each in records if isinstance(each, WeightVersion)}
    for each in records:
        if isinstance(each, Step):
            assert each.version == newest
            assert each.published is not None
            assert announced[each.published].step == each.step
            assert announced[each.published].weights_sha256 == each.weights_sha256
        elif isinstance(each, WeightVersion):
            assert each.version == newest + 1
            newest = each.version
