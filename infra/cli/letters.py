"""The fold of `deadletter` as an operator sees it: what was buried, and what became of it. Pure.

Invariants: letters about the same bytes (one place in the log, several readers, or one that started again) are one case, known by the
offset of each of them; a case is open until a Settlement names one of its letters, and the first Settlement stands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from schemas.deadletter import DeadLetter, Settlement
from schemas.errors import UsageError
from schemas.record import Record
from streams.codec import Entry

__all__ = ["Case", "Letters", "Origin"]

State = Literal["open", "redriven", "discarded"]


class Origin(NamedTuple):
    """Where the bytes stood. `topic` is without the namespace."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}[{self.partition}]@{self.offset}"


@dataclass(slots=True)
class Case:
    """All letters about the bytes of one place. `buried_ms` is the broker's time of the first, ms since 1970; `readers` buried it."""

    origin: Origin
    letter: DeadLetter
    buried_ms: int
    ids: list[int] = field(default_factory=list)
    readers: list[str] = field(default_factory=list)
    settlement: Settlement | None = None

    @property
    def id(self) -> int:
        """The offset of its first letter."""
        return self.ids[0]

    @property
    def state(self) -> State:
        """What became of it."""
        return "open" if self.settlement is None else self.settlement.how

    @property
    def type_name(self) -> str:
        """What the bytes said to be."""
        return self.letter.original_headers.get("type", b"").decode(errors="replace") or "?"


class Letters:
    """Cases in the order of their first letters."""

    def __init__(self, entries: Iterable[Entry[Record]] = ()) -> None:
        self._cases: dict[Origin, Case] = {}
        self._by_id: dict[int, Case] = {}
        for entry in entries:
            self.apply(entry)

    def apply(self, entry: Entry[Record]) -> None:
        """Take in one record of `deadletter`."""
        record = entry.record
        if isinstance(record, DeadLetter):
            origin = Origin(record.topic, record.partition, record.offset)
            case = self._cases.setdefault(origin, Case(origin, record, entry.timestamp_ms))
            case.ids.append(entry.offset)
            if record.reader not in case.readers:
                case.readers.append(record.reader)
            self._by_id[entry.offset] = case
        elif isinstance(record, Settlement) and record.letter in self._by_id:  # its letter may have expired
            case = self._by_id[record.letter]
            case.settlement = case.settlement or record

    def find(self, number: int) -> Case:
        """The case that a letter belongs to.

        :raises UsageError: there is no such letter.
        """
        if number not in self._by_id:
            raise UsageError(f"there is no dead letter {number}: `seamlessflow deadletter list --all` shows those there are")
        return self._by_id[number]

    def cases(self, *, everything: bool = False, matching: str = "") -> list[Case]:
        """The open ones, or `everything`; only those whose reason contains `matching`."""
        return [case for case in self._cases.values() if (everything or case.state == "open") and matching in case.letter.reason]
