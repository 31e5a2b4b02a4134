"""What a test has read of the log: all records of all topics as they come, the fold of `sessions`, and what of it is not settled yet.

The tokens of the paced engine describe themselves: number i of a request, made under version v, is `v * 10_000 + i`. So R1, R2 and R9 are
checked from the tokens alone, whatever any fold says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, TypeVar

import anyio

from schemas.arrays import unpack_i4
from schemas.errors import UnknownRecord
from schemas.record import Record
from schemas.score import Score
from schemas.session import Claim, Open
from schemas.span import Span
from schemas.task import Task
from schemas.topics import DEADLETTER, GRANTS, NODES, SCORES, SESSIONS, TASKS, TRAINING, TRAJECTORIES, Topic
from schemas.training import Drops, Step
from schemas.trajectory import Trajectory
from streams.codec import Entry
from streams.log import Log
from workers.ledger import Ledger, RequestState, SessionState

DEADLINE_S = 150.0
"""For a machine that is ten times slower than a quiet one."""
TOKENS_PER_VERSION = 10_000

R = TypeVar("R", bound=Record)


class Key(NamedTuple):
    """A session or a request: where it stands in `sessions`."""

    partition: int
    offset: int


class Seen:
    """Made by `watching`."""

    def __init__(self, topics: tuple[Topic, ...]) -> None:
        self._topics = topics
        self._entries: dict[str, list[Entry[Record]]] = {topic.name: [] for topic in topics}
        self._changed = anyio.Event()
        self.ledgers: dict[int, Ledger] = defaultdict(Ledger)
        self.owners: dict[int, Claim] = {}

    async def follow(self, log: Log, topic: Topic) -> None:
        """Read a topic from its beginning, until cancelled, or until a record that stops every reader of the topic."""
        with suppress(UnknownRecord):
            async with log.follow_all(topic) as reader:
                while True:
                    for entry in await reader.read(timeout_s=5.0):
                        self._take(topic, entry)
                    self._changed.set()
                    self._changed = anyio.Event()

    async def until(self, condition: Callable[[], object], cause: str) -> None:
        """Wait for what the log is to say.

        :raises AssertionError: it did not within DEADLINE_S.
        """
        with anyio.move_on_after(DEADLINE_S):
            while not condition():
                await self._changed.wait()
            return
        raise AssertionError(f"never came: {cause}")

    def all(self, topic: Topic, kind: type[R]) -> list[Entry[R]]:
        """The records of a kind so far, in log order within each partition."""
        return [entry for entry in self._entries[topic.name] if isinstance(entry.record, kind)]  # type: ignore[misc]

    def count(self, topic: Topic) -> int:
        """How many records of a topic were read."""
        return len(self._entries[topic.name])

    def request(self, key: Key) -> RequestState:
        """A request as the fold has it."""
        return next(session.requests[key.offset] for session in self._sessions(key.partition) if key.offset in session.requests)

    def session(self, key: Key) -> SessionState:
        """A session as the fold has it."""
        return self.ledgers[key.partition].sessions[key.offset]

    def running(self, node: str | None = None, *, least: int = 1) -> list[Key]:
        """Requests in mid-generation: with `least` tokens, without an end; in the partitions that `node` claimed last, where given."""
        return [
            Key(partition, request.offset)
            for partition, ledger in list(self.ledgers.items())
            for _, request in ledger.unfinished()
            if request.accepted >= least and node in (None, self.owners[partition].node)
        ]

    def busiest(self, *, least: int = 1) -> str:
        """The node with most requests in mid-generation."""
        return max({claim.node for claim in self.owners.values()}, key=lambda node: len(self.running(node, least=least)))

    def unsettled(self) -> list[str]:
        """What is to come of the sessions read so far: ends, Trajectories, Scores."""
        counted = self.trajectories()
        scored = {(entry.partition, entry.record.trajectory) for entry in self.all(SCORES, Score)}
        missing = []
        for partition, ledger in self.ledgers.items():
            for session in ledger.sessions.values():
                found = counted.get(Key(partition, session.offset))
                if session.is_open:
                    missing.append(f"session {partition}-{session.offset} is open")
                elif session.close is None:  # a reset ended it: its records are gone
                    continue
                elif found is None:
                    missing.append(f"session {partition}-{session.offset} has no Trajectory")
                elif (partition, found.offset) not in scored:
                    missing.append(f"session {partition}-{session.offset} has no Score")
        return missing

    def trajectories(self) -> dict[Key, Entry[Trajectory]]:
        """Those that count, by session: in each partition, a Close that is not above the last one is a repetition (R6)."""
        last: dict[int, int] = defaultdict(lambda: -1)
        counted: dict[Key, Entry[Trajectory]] = {}
        for entry in self.all(TRAJECTORIES, Trajectory):
            if entry.record.close > last[entry.partition]:
                last[entry.partition] = entry.record.close
                key = Key(entry.partition, entry.record.session)
                assert key not in counted, f"two Trajectories of {key} count"
                counted[key] = entry
        return counted

    def first_scores(self) -> dict[Key, Score]:
        """The first Score of each Trajectory that stands at a place (partition, offset in `trajectories`)."""
        scores: dict[Key, Score] = {}
        for entry in self.all(SCORES, Score):
            scores.setdefault(Key(entry.partition, entry.record.trajectory), entry.record)
        return scores

    def steps(self) -> list[Entry[Step]]:
        """The Steps so far."""
        return self.all(TRAINING, Step)

    def decisions(self) -> list[Entry[Step] | Entry[Drops]]:
        """The Steps and Drops so far."""
        return [*self.steps(), *self.all(TRAINING, Drops)]

    async def more_steps(self, count: int) -> None:
        """Wait until the trainer made so many more."""
        before = len(self.steps())
        await self.until(lambda: len(self.steps()) >= before + count, f"{count} more steps")

    def opens(self) -> list[Open]:
        """Every Open so far."""
        return [entry.record for entry in self.all(SESSIONS, Open)]

    def decided_groups(self) -> set[int]:
        """Groups that were trained or dropped."""
        return {group for entry in self.decisions() for group in groups_of(entry.record)}

    def decided_sessions(self) -> set[Key]:
        """Sessions that stand in a Step or Drops, as trained or with a reason."""
        trained = {Key(place.partition, place.session) for step in self.steps() for place in step.record.plan.places}
        return trained | {Key(drop.place.partition, drop.place.session) for entry in self.decisions() for drop in entry.record.drops}

    def given_out(self) -> set[int]:
        """Training groups of which Tasks stand in the log."""
        return {entry.record.group for entry in self.all(TASKS, Task) if entry.record.purpose == "train"}

    def ended_training(self) -> set[Key]:
        """Training sessions that have ended."""
        return {
            Key(partition, session.offset)
            for partition, ledger in self.ledgers.items()
            for session in ledger.sessions.values()
            if not session.is_open and session.record.purpose == "train"
        }

    def late_spans(self, partition: int, epoch: int) -> list[Entry[Span]]:
        """Spans of an older epoch that stand behind the Claim of `epoch`."""
        claims = [entry.offset for entry in self.all(SESSIONS, Claim) if (entry.partition, entry.record.epoch) == (partition, epoch)]
        return [
            entry for entry in self.all(SESSIONS, Span)
            if entry.partition == partition and entry.record.epoch < epoch and claims and entry.offset > claims[0]
        ]

    def _sessions(self, partition: int) -> Iterator[SessionState]:
        yield from self.ledgers[partition].sessions.values()

    def _take(self, topic: Topic, entry: Entry[Record]) -> None:
        self._entries[topic.name].append(entry)
        if topic is not SESSIONS:
            return
        self.ledgers[entry.partition].apply(entry.offset, entry.record)
        if isinstance(entry.record, Claim) and entry.record.epoch == self.ledgers[entry.partition].epoch:
            self.owners[entry.partition] = entry.record


def groups_of(decision: Step | Drops) -> set[int]:
    """The groups that a record decided."""
    return set(decision.groups) if isinstance(decision, Drops) else {*decision.groups_trained, *decision.groups_dropped}


ALL = (SESSIONS, TRAJECTORIES, SCORES, TRAINING, TASKS, NODES, GRANTS, DEADLETTER)


@asynccontextmanager
async def watching(log: Log, topics: tuple[Topic, ...] = ALL) -> AsyncIterator[Seen]:
    """Read these topics for the length of a context."""
    seen = Seen(topics)
    async with anyio.create_task_group() as tasks:
        for topic in topics:
            tasks.start_soon(seen.follow, log, topic)
        yield seen
        tasks.cancel_scope.cancel()


def require_self_describing(seen: Seen) -> None:
    """R9, and half of R2: every Span of the log, counted or not, holds the tokens that its version and its start name."""
    for entry in seen.all(SESSIONS, Span):
        span, first = entry.record, entry.record.version * TOKENS_PER_VERSION + entry.record.start
        assert unpack_i4(span.tokens) == list(range(first, first + span.count)), f"span at {entry.partition}-{entry.offset}"


def require_unbroken(tokens: list[int], count: int) -> None:
    """R1 and R2: an answer holds tokens 0, 1, 2, … of its request, each once, whatever versions made them."""
    assert [token % TOKENS_PER_VERSION for token in tokens] == list(range(count))
