"""What a member of a consumer group has read and not finished: work that may end in any order, committed as a low watermark.

Invariants:
- the committed offset of a partition never passes a record that was handed out and is not done: whoever takes over gets it again;
- records of one assignment are done in that assignment or not at all: what was handed out before a rebalance may still finish, and moves
  no watermark;
- a record is handed out once in an assignment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.record import Record
from streams.codec import Entry
from streams.log import Member

__all__ = ["Intake", "Item", "LowWatermark"]

NO_GENERATION = -1


class LowWatermark:
    """The lowest offset of one partition that is not done. Offsets begin in ascending order and end in any."""

    def __init__(self, next_offset: int) -> None:
        self._next = next_offset
        self._begun: dict[int, None] = {}

    def begin(self, offset: int) -> None:
        """Work on the record at `offset` begins; all before it were begun or are no records."""
        self._begun[offset] = None
        self._next = offset + 1

    def done(self, offset: int) -> None:
        """It ended. Saying it twice changes nothing."""
        self._begun.pop(offset, None)

    @property
    def offset(self) -> int:
        """Everything below is done."""
        return next(iter(self._begun), self._next)


class Item(NamedTuple):
    """A record to be worked on. `done()` when nothing of it can be lost any more."""

    entry: Entry[Record]
    watermark: LowWatermark

    def done(self) -> None:
        """Let the watermark pass."""
        self.watermark.done(self.entry.offset)


@dataclass
class Intake:
    """A member's reading and committing. One task reads and commits; any may call `done`."""

    member: Member
    _generation: int = NO_GENERATION
    _watermarks: dict[int, LowWatermark] = field(default_factory=dict)
    _committed: dict[int, int] = field(default_factory=dict)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Item]:
        """Up to `limit` records, each begun; none after `timeout_s`."""
        if self.member.generation() != self._generation:
            await self._begin_assignment()
        entries = await self.member.read(timeout_s=timeout_s, limit=limit)
        if self.member.generation() != self._generation:
            return []  # of another assignment: they are read again from what is committed
        return [self._begin(entry) for entry in entries]

    async def commit(self) -> None:
        """Commit the watermarks that moved. Refused: the partitions are somebody else's, or will be handed out anew."""
        offsets = {partition: mark.offset for partition, mark in self._watermarks.items()}
        moved = {partition: offset for partition, offset in offsets.items() if offset != self._committed[partition]}
        if not moved:
            return
        if await self.member.commit(moved):
            self._committed.update(moved)
        else:
            self._generation, self._watermarks, self._committed = NO_GENERATION, {}, {}

    def _begin(self, entry: Entry[Record]) -> Item:
        watermark = self._watermarks[entry.partition]
        watermark.begin(entry.offset)
        return Item(entry, watermark)

    async def _begin_assignment(self) -> None:
        """Start each partition where the group committed, also where something was read before it was known to be ours."""
        while self._generation != (generation := self.member.generation()):
            starts = await self._starts()
            for partition, offset in starts.items():
                self.member.seek(partition, offset)
            self._watermarks = {partition: LowWatermark(offset) for partition, offset in starts.items()}
            self._committed = dict(starts)
            self._generation = generation

    async def _starts(self) -> dict[int, int]:
        """What is committed, or the first record left where retention passed it."""
        log, topic = self.member.log, self.member.topic
        places = {partition: log.place(topic, partition) for partition in sorted(self.member.partitions())}
        firsts = await log.broker.starts(list(places.values()))
        committed = {partition: await self.member.committed(partition) for partition in places}
        return {partition: max((committed[partition] or (0, ""))[0], firsts[place]) for partition, place in places.items()}
