"""What a member of a consumer group has read and not finished: work that may end in any order, committed as a low watermark.

Invariants:
- the committed offset of a partition never passes a record that was handed out and is not done: whoever takes over gets it again;
- records of one assignment are done in that assignment or not at all: what was handed out before a rebalance may still finish, and moves
  no watermark;
- a record is handed out once in an assignment;
- before a record is worked on, the log says of its partition that work has begun (`workers.trials`); that is taken back when nothing is
  worked on, at a clean end, and when partitions are dealt anew among the living;
- a suspect is handed out while nothing else is worked on in this process; poison is handed out as such, not to be worked on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from schemas.record import Record
from streams.codec import Entry
from streams.log import Member
from workers.trials import FATAL, NO_TRIALS, Begun, Trials, metadata_of, taken_over, trials_of

__all__ = ["Intake", "Item", "LowWatermark"]

NO_GENERATION = -1
WARY_LIMIT = 64
"""Records handed out at once after a death: they would be the suspects after the next ones."""
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
    """One partition of an assignment. `trials` are about `first` and what follows; `reach` is the offset after the last one begun.

    `waiting` are suspects; `kept` is what stands in the log.
    """

    watermark: LowWatermark
    first: int
    trials: Trials
    kept: tuple[int, str]
    reach: int = 0
    waiting: deque[Item] = field(default_factory=deque)

    @property
    def is_wary(self) -> bool:
        """Something is left that a death may have been about."""
        return self.trials.is_wary(self.watermark.offset)

    @property
    def running(self) -> int:
        """Records that are worked on."""
        return self.watermark.running - len(self.waiting)

    @property
    def is_poison(self) -> bool:
        """The lowest record must not be begun again."""
        return self.watermark.offset == self.first and self.trials.alone >= FATAL

    def standing(self, begun: Begun) -> tuple[int, str]:
        """What is to stand in the log."""
        offset, trials = self.watermark.offset, self.trials if self.is_wary else NO_TRIALS
        if offset != self.first:
            trials = trials._replace(alone=0)
        if begun == "some" and trials.deaths:
            trials = trials._replace(until=self.reach)
        return offset, metadata_of(trials._replace(begun=begun))

    def is_news(self, standing: tuple[int, str]) -> bool:
        """Whether the log must say this before work begins. An offset alone need not, unless a death is to be about the lowest record."""
        return standing != self.kept if self.is_wary else standing[1] != self.kept[1]


@dataclass
class Intake:
    """A member's reading and committing. One task reads and commits; any may call `done`."""

    member: Member
    _generation: int = NO_GENERATION
    _shares: dict[int, _Share] = field(default_factory=dict)
    _alone: Item | None = None

    def __post_init__(self) -> None:
        self.member.at_revocation(self._let_go)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Item]:
        """Up to `limit` records, each begun; none after `timeout_s`, or while a suspect runs."""
        if self.member.generation() != self._generation:
            await self._begin_assignment()
        if self._is_one_alone() or any(share.waiting for share in self._shares.values()):
            return await self._next_suspect(timeout_s)
        is_wary = any(share.is_wary for share in self._shares.values())
        entries = await self.member.read(timeout_s=timeout_s, limit=min(limit, WARY_LIMIT) if is_wary else limit)
        if self.member.generation() != self._generation:
            return []  # of another assignment: they are read again from what is committed
        items = [item for item in map(self._begin, entries) if item is not None]
        return items if not items or await self._note() else []

    async def commit(self) -> None:
        """Commit what changed. Refused: the partitions are somebody else's, or will be handed out anew."""
        standing = self._standing()
        await self._commit({partition: now for partition, now in standing.items() if now != self._shares[partition].kept})

    async def leave(self) -> None:
        """Commit, and say that this is a clean end: what is not done was not killed by anything."""
        await self._commit(self._let_go())

    def _begin(self, entry: Entry[Record]) -> Item | None:
        """A record to be worked on now; a suspect waits."""
        share = self._shares[entry.partition]
        share.watermark.begin(entry.offset)
        item = Item(entry, share.watermark)
        if share.trials.suspects(entry.offset):
            share.waiting.append(item)
            return None
        share.reach = entry.offset + 1
        return item

    def _is_one_alone(self) -> bool:
        return self._alone is not None and self._alone.watermark.is_begun(self._alone.entry.offset)

    async def _next_suspect(self, timeout_s: float) -> list[Item]:
        """The next suspect, once nothing else runs."""
        if any(share.running for share in self._shares.values()):
            await anyio.sleep(min(timeout_s, ALONE_S))
            return []
        share = next(share for share in self._shares.values() if share.waiting)
        self._alone = share.waiting.popleft()
        if share.is_poison:
            return [self._alone._replace(is_poison=True)]
        return [self._alone] if await self._note() else []

    def _standing(self) -> dict[int, tuple[int, str]]:
        """What is to stand in the log, by partition."""
        alone = self._alone.entry.partition if self._alone is not None and self._is_one_alone() else None
        return {
            partition: share.standing("alone" if partition == alone else "some" if share.running else "")
            for partition, share in self._shares.items()
        }

    def _let_go(self) -> Mapping[int, tuple[int, str]]:
        """As `_standing`, with no beginning left."""
        if self.member.generation() != self._generation:
            return {}
        return {partition: share.standing("") for partition, share in self._shares.items()}

    async def _note(self) -> bool:
        """Let the log say what has begun. False: it is no more for us to begin."""
        standing = self._standing()
        return await self._commit({partition: now for partition, now in standing.items() if self._shares[partition].is_news(now)})

    async def _commit(self, standing: Mapping[int, tuple[int, str]]) -> bool:
        if self.member.generation() != self._generation:
            self._forget()  # dealt anew: others may have gone on from there meanwhile, also where a partition is ours again
            return False
        if standing and not await self.member.commit(standing):
            self._forget()
        for partition, now in standing.items() if self._shares else ():
            self._shares[partition].kept = now
        return self.member.generation() == self._generation

    def _forget(self) -> None:
        self._generation, self._shares, self._alone = NO_GENERATION, {}, None

    async def _begin_assignment(self) -> None:
        """Start each partition where the group committed, also where something was read before it was known to be ours."""
        while self._generation != (generation := self.member.generation()):
            self._forget()
            shares = await self._take_shares()
            for partition, share in shares.items():
                self.member.seek(partition, share.first)
            self._shares, self._generation = shares, generation

    async def _take_shares(self) -> dict[int, _Share]:
        """What is committed, or the first record left where retention passed it; and the deaths, with what the one before left begun."""
        log, topic = self.member.log, self.member.topic
        places = {partition: log.place(topic, partition) for partition in sorted(self.member.partitions())}
        firsts, ends = await log.broker.starts(list(places.values())), await log.broker.ends(list(places.values()))
        shares = {}
        for partition, place in places.items():
            kept = await self.member.committed(partition) or (0, "")
            first = max(kept[0], firsts[place])
            found = trials_of(kept[1]) if first == kept[0] else NO_TRIALS
            shares[partition] = _Share(LowWatermark(first), first, taken_over(found, first, ends[place]), kept)
        return shares
