"""Where a reader of `sessions` starts (R5), and how Positions are kept: as committed offsets with the epoch as metadata.

A Position is a fact of the log, so any reader may use anybody's: the owners' group `rollout` serves gateways, too. If retention passed a
reader's own, it takes `rollout`'s; if that is gone as well, it starts at the first record left with a `floor`: nothing counts before
a Claim with `reset` at least as great as the newest Grant of the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from schemas.identity import START, Position
from schemas.topics import SESSIONS
from streams.log import Log
from workers.ledger import Ledger

ROLLOUT_GROUP = "rollout"


class Start(NamedTuple):
    """Where to read from. `floor` is set where every Position is gone: what was before is lost, and that is to be reported."""

    position: Position
    floor: int | None

    def ledger(self) -> Ledger:
        """A fold from here."""
        return Ledger(self.position, self.floor)


def choose(first: int, committed: Sequence[Position | None], newest_grant: int) -> Start:
    """The first of the committed Positions that retention has left, else the log's own start.

    `first` is the offset of the first record left; `committed` in order of preference.
    """
    for position in committed:
        if position is not None and position.offset >= first:
            return Start(position, None)
    if first == 0:
        return Start(START, None)
    return Start(Position(first, -1), newest_grant)


async def find_starts(
    log: Log, partitions: Iterable[int], newest_grants: Mapping[int, int], groups: Sequence[str] = (ROLLOUT_GROUP,)
) -> dict[int, Start]:
    """Where to start in each partition. `newest_grants`: partition → offset of its newest Grant (absent: −1)."""
    places = {partition: log.place(SESSIONS, partition) for partition in partitions}
    firsts = await log.broker.starts(list(places.values()))
    found = [await log.broker.committed(log.group(group), list(places.values())) for group in groups]
    return {
        partition: choose(
            firsts[place],
            [Position.parse(*offsets[place]) if place in offsets else None for offsets in found],
            newest_grants.get(partition, -1),
        )
        for partition, place in places.items()
    }


async def commit_positions(log: Log, positions: Mapping[int, Position], group: str = ROLLOUT_GROUP) -> None:
    """Keep these Positions (partition → Position) under a group without members."""
    offsets = {log.place(SESSIONS, partition): (position.offset, position.metadata()) for partition, position in positions.items()}
    await log.broker.commit(log.group(group), offsets)
