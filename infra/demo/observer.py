"""One more reader: folds the log into what the live view and the story need. It writes nothing, and may die without harm.

Invariant: every figure here is a function of the log, never of what a process said of itself on the side.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from infra.demo.evaluations import Evaluations
from schemas.node import NodeStatus
from schemas.record import Record
from schemas.score import Score
from schemas.task import Task
from schemas.topics import NODES, SCORES, SESSIONS, TASKS, TRAINING, TRAJECTORIES, Topic
from schemas.training import Dropped, Drops, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.codec import Entry
from streams.log import Log
from workers.ledger import Claimed, Extended, Ledger, RequestState, SessionEnded

POLL_S = 0.5
RATE_WINDOW_S = 5.0


@dataclass
class Observer:
    """What the log says, as far as it was read."""

    steps: list[Step] = field(default_factory=list)
    version: int = -1
    dropped: Counter[str] = field(default_factory=Counter)
    evaluations: Evaluations = field(default_factory=Evaluations)
    nodes: dict[str, NodeStatus] = field(default_factory=dict)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    tokens: int = 0
    episodes: int = 0
    ended: int = 0
    _changed: anyio.Event = field(default_factory=anyio.Event)
    _rate: deque[tuple[float, int]] = field(default_factory=deque)

    async def run(self, log: Log) -> None:
        """Follow all topics from their beginning, until cancelled."""
        async with anyio.create_task_group() as tasks:
            for topic, take in self._takers():
                tasks.start_soon(self._follow, log, topic, take)

    async def change(self) -> None:
        """Wait until more of the log was read."""
        await self._changed.wait()

    def tokens_per_s(self) -> float:
        """Counted tokens per second over the last seconds."""
        now = anyio.current_time()
        self._rate.append((now, self.tokens))
        while len(self._rate) > 2 and now - self._rate[1][0] > RATE_WINDOW_S:
            self._rate.popleft()
        since, before = self._rate[0]
        return (self.tokens - before) / (now - since) if now > since else 0.0

    def open_sessions(self) -> int:
        """Sessions without an end."""
        return self.episodes - self.ended

    def unfinished(self, node: str) -> list[RequestState]:
        """The requests that run in the partitions that a node claimed last and, by its last word, still holds."""
        held = self.nodes[node].partitions if node in self.nodes else []
        return [
            request
            for partition, owner in self.owners.items()
            if owner == node and partition in held
            for _, request in self.ledgers[partition].unfinished()
        ]

    def _takers(self) -> list[tuple[Topic, Callable[[Entry[Record]], None]]]:
        return [
            (TRAINING, self._take_training), (TASKS, self._take_task), (SESSIONS, self._take_session),
            (TRAJECTORIES, self._take_trajectory), (SCORES, self._take_score), (NODES, self._take_node),
        ]

    def _take_training(self, entry: Entry[Record]) -> None:
        match entry.record:
            case Step() as step:
                self.steps.append(step)
                self._drop(step.drops)
            case Drops(drops=drops):
                self._drop(drops)
            case WeightVersion(version=version):
                self.version = version

    def _drop(self, drops: list[Dropped]) -> None:
        self.dropped.update(dropped.reason for dropped in drops)

    def _take_task(self, entry: Entry[Record]) -> None:
        assert isinstance(entry.record, Task)
        self.evaluations.take_task(entry.record)

    def _take_session(self, entry: Entry[Record]) -> None:
        ledger = self.ledgers.setdefault(entry.partition, Ledger())
        change = ledger.apply(entry.offset, entry.record)
        match change:
            case Extended(_, _, part):
                self.tokens += part.size
            case SessionEnded(session):
                self.ended += 1
                ledger.forget(session)
            case Claimed(claim):
                self.owners[entry.partition] = claim.node
        self.episodes += entry.record.type_name() == "Open"

    def _take_trajectory(self, entry: Entry[Record]) -> None:
        assert isinstance(entry.record, Trajectory)
        self.evaluations.take_trajectory((entry.partition, entry.offset), entry.record)

    def _take_score(self, entry: Entry[Record]) -> None:
        assert isinstance(entry.record, Score)
        self.evaluations.take_score(entry.partition, entry.record)

    def _take_node(self, entry: Entry[Record]) -> None:
        if isinstance(entry.record, NodeStatus):
            self.nodes[entry.record.node] = entry.record

    async def _follow(self, log: Log, topic: Topic, take: Callable[[Entry[Record]], None]) -> None:
        async with log.follow_all(topic) as reader:
            while True:
                for entry in await reader.read(timeout_s=POLL_S):
                    take(entry)
                self._changed.set()
                self._changed = anyio.Event()
