"""Three logs that a feed reads, made at random, and sessions by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from schemas.record import Record
from schemas.score import Score
from schemas.task import Purpose, Task
from schemas.training import Consumed
from schemas.trajectory import Trajectory
from tests.unit.trainer.trees import node

PARTITIONS = 2
RULE = "rule"
TopicName = Literal["tasks", "trajectories", "scores"]
Event = tuple[TopicName, int, int, Record]
"""One record as it is read: topic, partition, offset."""


def session(
    number: int, close: int, *, group: int | None = None, member: int | None = None, purpose: Purpose = "train", sampled: int = 2,
    version: int = 0, reward: float | None = None,
) -> Trajectory:
    """An ended session of one request with two given and `sampled` sampled tokens."""
    nodes = [node([1, 2], [3] * sampled, versions=[version] * sampled)] if sampled else []
    return Trajectory(session=number, close=close, group=group, member=member, purpose=purpose, nodes=nodes, reward=reward)


def score(trajectory: int, value: float = 1.0, *, rule: str = RULE, ok: bool = True) -> Score:
    return Score(trajectory=trajectory, session=0, rule=rule, value=value, status="ok" if ok else "failed")


@dataclass
class Logs:
    """Partition → records; the index is the offset."""

    tasks: list[list[Task]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    trajectories: list[list[Trajectory]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])
    scores: list[list[Score]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def partitions(self) -> list[tuple[TopicName, int]]:
        names: tuple[TopicName, ...] = ("tasks", "trajectories", "scores")
        return [(name, partition) for name in names for partition in range(PARTITIONS)]

    def records(self, topic: TopicName, partition: int) -> list[Record]:
        logs: list[list[Record]] = getattr(self, topic)
        return logs[partition]


def random_logs(draw: Random) -> Logs:
    """Groups with missing, empty, repeated, failed and late members; evaluation; sessions of nobody; doubled records everywhere."""
    logs = Logs()
    members = draw.randint(1, 3)
    wanted: list[Trajectory] = []
    for group in range(draw.randint(1, 6)):
        purpose: Purpose = "eval" if draw.random() < 0.15 else "train"
        partition = draw.randrange(PARTITIONS)
        for member in range(members):
            task = Task(number=group * members + member, group=group, member=member, members=members, purpose=purpose)
            logs.tasks[partition].append(task)
            attempts = draw.choice([0, 1, 1, 1, 1, 1, 2])
            wanted += [_attempt(draw, group, member, purpose) for _ in range(attempts)]
    wanted += [_attempt(draw, None, None, draw.choice(["train", "eval"])) for _ in range(draw.randint(0, 3))]
    draw.shuffle(wanted)
    for trajectory in wanted:
        _append(draw, logs, trajectory)
    return logs


def _attempt(draw: Random, group: int | None, member: int | None, purpose: Purpose) -> Trajectory:
    sampled, version = draw.choice([0, 1, 2, 2, 2]), draw.choice([0, 0, 0, 1, 2])
    return session(0, 0, group=group, member=member, purpose=purpose, sampled=sampled, version=version)


def _append(draw: Random, logs: Logs, trajectory: Trajectory) -> None:
    """The assembler restarts now and then: it then writes its last trajectories again. Rules answer several times, in any order."""
    partition = draw.randrange(PARTITIONS)
    log, scores = logs.trajectories[partition], logs.scores[partition]
    close = max((each.close for each in log), default=-1) + draw.randint(1, 3)
    log.append(Trajectory(session=close * 10, close=close, group=trajectory.group, member=trajectory.member, purpose=trajectory.purpose,
                          nodes=trajectory.nodes))  # fmt: skip
    answered = [len(log) - 1]
    while draw.random() < 0.2:
        log.append(log[draw.randrange(len(log))])
        answered.append(len(log) - 1)
    for offset in answered:
        for _ in range(draw.choice([1, 1, 1, 2])):
            answer = score(offset, draw.choice([0.0, 0.5, 1.0]), ok=draw.random() < 0.9)
            scores.insert(draw.randint(max(0, len(scores) - 4), len(scores)), answer)


def reading(draw: Random, logs: Logs, consumed: Consumed) -> Iterator[Event]:
    """All records from a Consumed to the ends: in order within a partition, in any order between them, some handed over twice."""
    marks = {mark.partition: mark for mark in consumed.watermarks}
    starts = {
        "tasks": lambda partition: consumed.tasks.get(partition, 0),
        "trajectories": lambda partition: marks[partition].trajectory if partition in marks else 0,
        "scores": lambda partition: marks[partition].score if partition in marks else 0,
    }
    at = {(topic, partition): starts[topic](partition) for topic, partition in logs.partitions()}
    while left := [key for key in at if at[key] < len(logs.records(*key))]:
        topic, partition = draw.choice(left)
        offset = at[topic, partition]
        yield topic, partition, offset, logs.records(topic, partition)[offset]
        at[topic, partition] = max(starts[topic](partition), offset - 1) if draw.random() < 0.1 else offset + 1
