"""What a member of a consumer group has read and not finished: work that may end in any order, committed as a low watermark.

Invariants:
- the committed offset of a partition never passes a record that was handed out and is not done: whoever takes over gets it again;
- records of one assignment are done in that assignment or not at all: what was handed out before a rebalance may still finish, and moves
  no watermark;
- a record is handed out once in an assignment;
- where the one before did not leave cleanly, each beginning is counted in the log before the record is handed out (`workers.trials`); a
  suspect runs while nothing else does, and poison is handed out as such, not to be worked on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from schemas.record import Record
from streams.codec import Entry
from streams.log import Member
from workers.trials import LEFT, NO_TRIAL, Trial, metadata_of, trials_of

__all__ = ["Intake", "Item", "LowWatermark"]

NO_GENERATION = -1
WARY_LIMIT = 64
"""Records handed out at once while beginnings are counted: their count must fit into the metadata of one commit."""
ALONE_S = 0.05
"""Between two looks whether a suspect has ended."""


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

    def is_begun(self, offset: int) -> bool:
        """It began and is not done."""
        return offset in self._begun

    @property
    def running(self) -> int:
        """How many began and are not done."""
        return len(self._begun)

    @property
    def offset(self) -> int:
        """Everything below is done."""
        return next(iter(self._begun), self._next)


class Item(NamedTuple):
    """A record to be worked on. `done()` when nothing of it can be lost any more. `is_poison`: it killed too often to be worked on."""

    entry: Entry[Record]
    watermark: LowWatermark
    is_poison: bool = False

    def done(self) -> None:
        """Let the watermark pass."""
        self.watermark.done(self.entry.offset)


@dataclass
class _Share:
    """One partition of an assignment. Beginnings are counted below `wary_until`; `is_noted`: the log says that work has begun."""

    watermark: LowWatermark
    committed: int
    wary_until: int
    is_noted: bool
    trials: dict[int, Trial] = field(default_factory=dict)

    def counts(self, offset: int) -> bool:
        """Whether a beginning at `offset` is to be counted."""
        return offset < self.wary_until

    def metadata(self) -> str:
        """What is to stand beside the watermark."""
        self.trials = {offset: trial for offset, trial in self.trials.items() if offset >= self.watermark.offset}
        return metadata_of(self.trials)


@dataclass
class Intake:
    """A member's reading and committing. One task reads and commits; any may call `done`."""

    member: Member
    _generation: int = NO_GENERATION
    _shares: dict[int, _Share] = field(default_factory=dict)
    _suspects: deque[Item] = field(default_factory=deque)
    _alone: Item | None = None

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Item]:
        """Up to `limit` records, each begun; none after `timeout_s`, or while a suspect runs."""
        if self.member.generation() != self._generation:
            await self._begin_assignment()
        if self._suspects or self._is_one_alone():
            return await self._next_suspect(timeout_s)
        is_wary = any(share.counts(share.watermark.offset) for share in self._shares.values())
        entries = await self.member.read(timeout_s=timeout_s, limit=min(limit, WARY_LIMIT) if is_wary else limit)
        if self.member.generation() != self._generation:
            return []  # of another assignment: they are read again from what is committed
        return await self._admit([self._begin(entry) for entry in entries])

    async def commit(self) -> None:
        """Commit the watermarks that moved. Refused: the partitions are somebody else's, or will be handed out anew."""
        moved = [partition for partition, share in self._shares.items() if share.watermark.offset != share.committed]
        await self._commit({partition: self._shares[partition].metadata() for partition in moved})

    async def leave(self) -> None:
        """Commit, and say that this is a clean end: what is not done was not killed by anything."""
        await self._commit(dict.fromkeys(self._shares, LEFT))

    async def _commit(self, metadata: Mapping[int, str]) -> bool:
        offsets = {partition: (self._shares[partition].watermark.offset, text) for partition, text in metadata.items()}
        if not offsets:
            return True
        if not await self.member.commit(offsets):
            self._forget()
            return False
        for partition, (offset, _) in offsets.items():
            self._shares[partition].committed, self._shares[partition].is_noted = offset, True
        return True

    def _begin(self, entry: Entry[Record]) -> Item:
        watermark = self._shares[entry.partition].watermark
        watermark.begin(entry.offset)
        return Item(entry, watermark)

    async def _admit(self, items: Sequence[Item]) -> list[Item]:
        """Those that may be worked on now: their beginnings are in the log. Suspects wait."""
        ready, changed = list[Item](), set[int]()
        for item in items:
            share, offset = self._shares[item.entry.partition], item.entry.offset
            trial = share.trials.get(offset, NO_TRIAL)
            if trial.is_suspect:
                self._suspects.append(item)
                continue
            ready.append(item)
            if share.counts(offset):
                share.trials[offset] = trial._replace(begun=trial.begun + 1)
            if share.counts(offset) or not share.is_noted:
                changed.add(item.entry.partition)
        is_ours = await self._commit({partition: self._shares[partition].metadata() for partition in changed})
        return ready if is_ours else []

    def _is_one_alone(self) -> bool:
        return self._alone is not None and self._alone.watermark.is_begun(self._alone.entry.offset)

    async def _next_suspect(self, timeout_s: float) -> list[Item]:
        """The next suspect, once nothing else runs."""
        if sum(share.watermark.running for share in self._shares.values()) > len(self._suspects):
            await anyio.sleep(min(timeout_s, ALONE_S))
            return []
        item = self._alone = self._suspects.popleft()
        share, offset = self._shares[item.entry.partition], item.entry.offset
        trial = share.trials[offset]
        if trial.is_fatal:
            return [item._replace(is_poison=True)]
        share.trials[offset] = trial._replace(alone=trial.alone + 1)
        return [item] if await self._commit({item.entry.partition: share.metadata()}) else []

    def _forget(self) -> None:
        self._generation, self._shares, self._alone = NO_GENERATION, {}, None
        self._suspects.clear()

    async def _begin_assignment(self) -> None:
        """Start each partition where the group committed, also where something was read before it was known to be ours."""
        while self._generation != (generation := self.member.generation()):
            self._forget()
            shares = await self._take_shares()
            for partition, share in shares.items():
                self.member.seek(partition, share.committed)
            self._shares, self._generation = shares, generation

    async def _take_shares(self) -> dict[int, _Share]:
        """What is committed, or the first record left where retention passed it. Wary where records wait and nobody left cleanly."""
        log, topic = self.member.log, self.member.topic
        places = {partition: log.place(topic, partition) for partition in sorted(self.member.partitions())}
        firsts, ends = await log.broker.starts(list(places.values())), await log.broker.ends(list(places.values()))
        shares = {}
        for partition, place in places.items():
            offset, metadata = await self.member.committed(partition) or (0, LEFT)
            offset, is_clean = max(offset, firsts[place]), metadata == LEFT
            wary_until = offset if is_clean else ends[place]
            shares[partition] = _Share(LowWatermark(offset), offset, wary_until, not is_clean, trials_of(metadata))
        return shares
