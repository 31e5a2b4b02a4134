"""What a log says after a fault, counted from raw bytes that a second client (confluent-kafka) read.

Two independent readings: the audit (`infra.audit`), and a still simpler count here, which knows nothing of epochs and folds:
- *lost*: a Close that an agent was told of and that does not stand in the log; a session that an agent closed and that has no Trajectory;
  where a trainer works, a training session that was closed and stands in no Step or Drops; a request that has neither a closing span nor a
  Cancel, in a session without a Close;
- *twice*: a session with two Trajectories that count; one that was decided twice; a Task number that stands twice; a token trained twice.
Sessions and requests behind the marks, which the log had reached when the fault was over, may still be under way.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from infra.audit.entry import Entry, Unreadable, read_entry
from infra.audit.figures import Takeover
from infra.audit.findings import Violation
from infra.audit.log import KafkaLog, Log
from infra.audit.verify import Audit, AuditOptions, Verdict

Place = tuple[int, int]
"""Partition and offset in `sessions`."""
Ends = Mapping[int, int]
"""The offset after the last, by partition."""

TOPICS = ("tasks", "sessions", "trajectories", "training")


@dataclass(frozen=True, slots=True)
class Kill:
    """When a process died, milliseconds since 1970."""

    member: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class Slice:
    """What of the log belongs to a row: from `since` (all before belongs to earlier rows) up to `marks` in `sessions`.

    `told`: the sessions whose Close the row's agents were told of.
    """

    since: Ends
    marks: Ends
    kills: tuple[Kill, ...] = ()
    has_trainer: bool = False
    told: frozenset[Place] = frozenset()


@dataclass(frozen=True, slots=True)
class Counts:
    """What was found in the whole log: `lost` and `twice` name each finding, `done` the sessions that came to their end, closed by an agent
    and, where a trainer works, decided. Seconds are the row's own."""

    done: frozenset[Place] = frozenset()
    lost: frozenset[str] = frozenset()
    twice: frozenset[str] = frozenset()
    violations: frozenset[Violation] = frozenset()
    stall_s: float | None = None
    takeover_s: float | None = None
    own_s: float | None = None
    trainer_back_s: float | None = None


@dataclass
class Raw:
    """The entries of a log by type, in log order within each partition; what is no record is left out: the audit reports it.

    `first`: the first offset that is left in each partition of `sessions`.
    """

    entries: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    first: Ends = field(default_factory=dict)

    @classmethod
    def read(cls, log: Log) -> Raw:
        """Read the topics that are counted."""
        raw = cls(first=log.starts("sessions"))
        for topic in TOPICS:
            for message in log.read(topic):
                try:
                    entry = read_entry(message, topic)
                except Unreadable:
                    continue
                raw.entries[entry.type].append(entry)
        return raw

    def all(self, kind: str) -> list[Entry]:
        """The entries of one type."""
        return self.entries.get(kind, [])


def check_cluster(bootstrap: str, namespace: str, row: Slice, options: AuditOptions) -> Counts:
    """Read a namespace to its end, and count."""
    with KafkaLog(bootstrap, namespace) as log:
        return check(log, row, options)


def check(log: Log, row: Slice, options: AuditOptions) -> Counts:
    """Count in one log."""
    raw, verdict = Raw.read(log), Audit(log, options).run()
    twice = twice_of(raw)
    if verdict.trained_twice:
        twice.add(f"{verdict.trained_twice} tokens were trained twice")
    slowest = slowest_takeover(verdict, row)
    return Counts(
        done=frozenset(done_of(raw, row)),
        lost=frozenset(lost_of(raw, row)),
        twice=frozenset(twice),
        violations=frozenset(verdict.violations),
        stall_s=stall_s_of(raw, row),
        takeover_s=slowest.seconds if slowest else None,
        own_s=slowest.own_s if slowest else None,
        trainer_back_s=trainer_back_s_of(raw, row.kills),
    )


def done_of(raw: Raw, row: Slice) -> set[Place]:
    """Sessions of which nothing is to come."""
    closed = _closed(raw)
    return closed & set(_decided(raw)) if row.has_trainer else closed


def lost_of(raw: Raw, row: Slice) -> set[str]:
    """See the module."""
    ended = {(entry.partition, entry["session"]) for entry in raw.all("Close")}
    closed = {place for place in _closed(raw) if _is_before(place, row.marks)}
    unwritten = {place for place in row.told - ended if not _is_before(place, raw.first)}
    written = {(entry.partition, entry["session"]) for entry in raw.all("Trajectory")}
    lost = {f"the Close of session {_name(place)} does not stand in the log" for place in unwritten}
    lost |= {f"session {_name(place)} has no Trajectory" for place in closed - written}
    if row.has_trainer:
        trained = {(entry.partition, entry.offset) for entry in raw.all("Open") if entry["purpose"] == "train"}
        lost |= {f"session {_name(place)} is in no Step or Drops" for place in (closed & trained) - set(_decided(raw))}
    return lost | {f"request {_name(place)} has no end" for place in _endless(raw, row.marks, closed)}


def twice_of(raw: Raw) -> set[str]:
    """See the module."""
    decisions = Counter(_decided(raw))
    numbers = Counter(entry["number"] for entry in raw.all("Task"))
    counted = Counter(_counted(raw))
    return {
        *(f"session {_name(place)} was decided {count} times" for place, count in decisions.items() if count > 1),
        *(f"task {number} stands {count} times" for number, count in numbers.items() if count > 1),
        *(f"{count} Trajectories of session {_name(place)} count" for place, count in counted.items() if count > 1),
    }


def stall_s_of(raw: Raw, row: Slice) -> float | None:
    """The longest time without a Span between two Spans of the row; None where there are not two."""
    times_ms = sorted(entry.timestamp_ms for entry in raw.all("Span") if not _is_before((entry.partition, entry.offset), row.since))
    gaps_ms = [after - before for before, after in itertools.pairwise(times_ms)]
    return max(gaps_ms) / 1000 if gaps_ms else None


def slowest_takeover(verdict: Verdict, row: Slice) -> Takeover | None:
    """The longest takeover from a dead owner: from its death to the Claim (`own_s`), and to the first counted span of a resumed request."""
    found = [
        takeover
        for takeover in verdict.figures.takeovers
        if takeover.cause == "dead" and takeover.seconds is not None and takeover.offset >= row.since.get(takeover.partition, 0)
    ]
    return max(found, key=lambda takeover: takeover.seconds or 0.0, default=None)


def trainer_back_s_of(raw: Raw, kills: Iterable[Kill]) -> float | None:
    """The longest time from a trainer's death to the next decision on `training`; None where none died, or nothing followed."""
    decided_ms = sorted(entry.timestamp_ms for kind in ("Step", "Drops") for entry in raw.all(kind))
    back_ms = [
        next((at_ms - kill.at_ms for at_ms in decided_ms if at_ms > kill.at_ms), None)
        for kill in kills
        if kill.member.startswith("trainer")
    ]
    return max((each / 1000 for each in back_ms if each is not None), default=None)


def _closed(raw: Raw) -> set[Place]:
    """Sessions that an agent closed."""
    return {(entry.partition, entry["session"]) for entry in raw.all("Close") if not entry["idle"]}


def _endless(raw: Raw, marks: Ends, closed: set[Place]) -> Iterator[Place]:
    ended = {(entry.partition, entry["request"]) for entry in raw.all("Span") if entry["finish"] is not None}
    ended |= {(entry.partition, entry["request"]) for entry in raw.all("Cancel")}
    closed = closed | {(entry.partition, entry["session"]) for entry in raw.all("Close")}
    first = {(entry.partition, entry["session"], entry["nonce"]): entry for entry in reversed(raw.all("Request"))}  # others: resent
    for entry in first.values():
        place = (entry.partition, entry.offset)
        if _is_before(place, marks) and place not in ended and (entry.partition, entry["session"]) not in closed:
            yield place


def _decided(raw: Raw) -> Iterator[Place]:
    """Each decision on a session: as trained, or as dropped."""
    for step in raw.all("Step"):
        yield from ((place["partition"], place["session"]) for place in step["plan"]["places"])
    for entry in [*raw.all("Step"), *raw.all("Drops")]:
        yield from ((drop["place"]["partition"], drop["place"]["session"]) for drop in entry["drops"])


def _counted(raw: Raw) -> Iterator[Place]:
    """Trajectories of a partition are written in Close order: one whose Close is not above the last is a repetition."""
    last: dict[int, int] = defaultdict(lambda: -1)
    for entry in raw.all("Trajectory"):
        if entry["close"] > last[entry.partition]:
            last[entry.partition] = entry["close"]
            yield entry.partition, entry["session"]


def _is_before(place: Place, ends: Ends) -> bool:
    return place[1] < ends.get(place[0], 0)


def _name(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
