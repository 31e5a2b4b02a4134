"""The log as it stands, read once more: a naive fold of `sessions` and plain lists of all else. It shares no rule with the product.

What a record means is said here in the fewest words that R1 to R3 allow; speed and memory do not matter. Only the codec and the records are
the product's own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from schemas.arrays import unpack_i4
from schemas.deadletter import DeadLetter
from schemas.grant import Grant
from schemas.record import Record
from schemas.score import Score
from schemas.session import Cancel, Claim, Close, Open, Request
from schemas.span import Span
from schemas.task import Task
from schemas.topics import TOPICS
from schemas.training import Drops, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.broker import Place
from streams.codec import Entry, decode
from streams.memory import MemoryBroker

Key = tuple[int, int]
"""Partition and offset."""


@dataclass
class RequestSeen:
    """A request: `grown` says after which record (offset) how many tokens stood."""

    record: Request
    tokens: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    end: str = ""
    grown: list[tuple[int, int]] = field(default_factory=list)


@dataclass
class SessionSeen:
    """A session. `last` is its last record that counted, `closed_at` the one that ended it.

    `was_running`: that was an idle Close, and a request ran.
    """

    record: Open
    last: int
    requests: dict[int, RequestSeen] = field(default_factory=dict)
    nonces: set[bytes] = field(default_factory=set)
    closed_at: int | None = None
    close: Close | None = None
    was_running: bool = False


@dataclass
class PartitionSeen:
    """One partition of `sessions`. `claims` are (epoch, incarnation) in the order of the log; `oddities` what no correct owner writes."""

    epoch: int = -1
    sessions: dict[int, SessionSeen] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)
    oddities: list[str] = field(default_factory=list)

    def apply(self, offset: int, record: Record) -> None:
        """The next record."""
        if isinstance(record, Claim):
            self.claims.append(record)
            self.epoch = max(self.epoch, record.epoch)
        elif isinstance(record, Open):
            self.sessions[offset] = SessionSeen(record, offset)
        else:
            assert isinstance(record, Request | Span | Cancel | Close)
            session = self.sessions.get(record.session)
            if session is not None and session.closed_at is None and self._changes(session, offset, record):
                session.last = offset

    def _changes(self, session: SessionSeen, offset: int, record: Request | Span | Cancel | Close) -> bool:
        if isinstance(record, Request):
            return _request(session, offset, record)
        if isinstance(record, Close):
            return _close(session, offset, record)
        request = session.requests.get(record.request)
        if request is None or request.end:
            return False
        if isinstance(record, Cancel):
            request.end = "cancelled"
            return True
        return self._span(request, offset, record)

    def _span(self, request: RequestSeen, offset: int, span: Span) -> bool:
        tokens = unpack_i4(span.tokens)
        if span.epoch != self.epoch:
            return False
        if span.start == len(request.tokens):
            request.tokens += tokens
            request.versions += [span.version] * len(tokens)
            request.end = span.finish or ""
            request.grown.append((offset, len(request.tokens)))
            return True
        if request.tokens[span.start : span.start + len(tokens)] == tokens:
            return False
        self.oddities.append(f"span at {offset} starts at {span.start} where {len(request.tokens)} tokens stand")
        request.end = "failed"
        return True


def _request(session: SessionSeen, offset: int, record: Request) -> bool:
    if record.nonce in session.nonces:
        return False
    session.nonces.add(record.nonce)
    session.requests[offset] = RequestSeen(record)
    return True


def _close(session: SessionSeen, offset: int, close: Close) -> bool:
    if close.idle and session.last > close.seen:
        return False
    session.was_running = close.idle and any(not request.end for request in session.requests.values())
    session.closed_at, session.close = offset, close
    for request in session.requests.values():
        request.end = request.end or "closed"
    return True


class Reading:
    """Everything that a cluster holds, taken in as it grows."""

    def __init__(self, namespace: str) -> None:
        self._topics = {namespace + name: topic for name, topic in TOPICS.items()}
        self._next: defaultdict[Place, int] = defaultdict(int)
        self.sessions: defaultdict[int, PartitionSeen] = defaultdict(PartitionSeen)
        self.trajectories: defaultdict[int, list[Entry[Trajectory]]] = defaultdict(list)
        self.scores: set[Key] = set()
        self.tasks: list[Entry[Task]] = []
        self.training: list[Entry[Record]] = []
        self.grants: dict[int, Grant] = {}
        self.dead_letters = 0

    def take(self, broker: MemoryBroker, places: Collection[Place]) -> None:
        """What was written since the last time."""
        for place in places:
            messages, self._next[place] = broker.log(place).read(self._next[place], 1 << 30, committed=True)
            for message in messages:
                self._take(decode(self._topics[place.topic], message))

    def counted(self) -> dict[Key, tuple[int, Trajectory]]:
        """Session → the offset of its Trajectory that counts and itself: its Close lies above all before it in its partition."""
        found: dict[Key, tuple[int, Trajectory]] = {}
        for partition, entries in self.trajectories.items():
            greatest = -1
            for entry in entries:
                if entry.record.close > greatest:
                    greatest = entry.record.close
                    found.setdefault((partition, entry.record.session), (entry.offset, entry.record))
        return found

    def decided(self) -> set[Key]:
        """Places of Trajectories that a Step or Drops names."""
        found: set[Key] = set()
        for entry in self.training:
            if isinstance(entry.record, Step):
                found |= {(place.partition, place.offset) for place in entry.record.plan.places}
            if isinstance(entry.record, Step | Drops):
                found |= {(dropped.place.partition, dropped.place.offset) for dropped in entry.record.drops}
        return found

    def groups_decided(self) -> list[int]:
        """Groups that a Step trained or dropped, or a Drops names, as often as they do."""
        found: list[int] = []
        for entry in self.training:
            if isinstance(entry.record, Step):
                found += [*entry.record.groups_trained, *entry.record.groups_dropped]
            elif isinstance(entry.record, Drops):
                found += entry.record.groups
        return found

    def unsettled(self) -> list[str]:
        """What has no end yet."""
        counted, decided = self.counted(), self.decided()
        found = [f"group {task.record.group}" for task in self._open_groups()]
        for partition, seen in self.sessions.items():
            for offset, session in seen.sessions.items():
                name, trajectory = f"session {partition}-{offset}", counted.get((partition, offset))
                if session.closed_at is None:
                    found.append(f"{name} is open")
                elif trajectory is None:
                    found.append(f"{name} has no Trajectory")
                elif (partition, trajectory[0]) not in self.scores:
                    found.append(f"{name} has no Score")
                elif session.record.purpose == "train" and (partition, trajectory[0]) not in decided:
                    found.append(f"{name} is not decided")
        return found

    def _open_groups(self) -> list[Entry[Task]]:
        decided = set(self.groups_decided())
        return [task for task in self.tasks if task.record.purpose == "train" and task.record.group not in decided]

    def _take(self, entry: Entry[Record]) -> None:
        record = entry.record
        match record:
            case Open() | Request() | Cancel() | Close() | Claim() | Span():
                self.sessions[entry.partition].apply(entry.offset, record)
            case Trajectory():
                self.trajectories[entry.partition].append(entry)  # type: ignore[arg-type]
            case Score():
                self.scores.add((entry.partition, record.trajectory))
            case Task():
                self.tasks.append(entry)  # type: ignore[arg-type]
            case Grant():
                self.grants[entry.offset] = record
            case Step() | Drops() | WeightVersion():
                self.training.append(entry)
            case DeadLetter():  # what an agent or a crash storm spoiled is given up by design
                self.dead_letters += not record.reason.startswith("poison: ")
