"""Where a reader of `sessions` starts (R5), and how Positions are kept: as committed offsets with the epoch as metadata.

A Position is a fact of the log, so any reader may use anybody's: the owners' group `rollout` serves gateways, too. If retention passed a
reader's own, it takes `rollout`'s; if that is gone as well, it starts at the first record left with a `floor`: nothing counts before
a Claim with `reset` at least as great as the newest Grant of the partition.

A snapshot (`workers.snapshot`) only makes the way shorter: it is used where a Position stands, and moves the start beyond it. Without any
Position nothing counts, whatever a snapshot may hold: all readers must agree, and not all can have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import anyio

from schemas.identity import START, Position
from schemas.topics import SESSIONS
from streams.broker import Place
from streams.log import Log
from workers.ledger import Ledger
from workers.snapshot import Snapshot
from workers.snapshot_store import SnapshotStore

ROLLOUT_GROUP = "rollout"


class Start(NamedTuple):
    """Where to read from. `floor` is set where every Position is gone: what was before is lost, and that is to be reported.

    `snapshot`: the fold up to `position`, where one stands in for reading.
    """

    position: Position
    floor: int | None
    snapshot: Snapshot | None = None

    def ledger(self) -> Ledger:
        """A fold from here."""
        return Ledger(self.position, self.floor) if self.snapshot is None else self.snapshot.ledger()


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


def shorten(start: Start, snapshot: Snapshot, end: int) -> Start:
    """Begin with a snapshot, where that saves reading; `end` is the offset after the partition's last record."""
    saves = start.floor is None and start.position.offset < snapshot.next <= end
    return Start(snapshot.position, None, snapshot) if saves else start


async def shortened(log: Log, starts: Mapping[int, Start], snapshots: Mapping[int, Snapshot]) -> dict[int, Start]:
    """These starts, with the snapshots (by partition) that save reading."""
    useful = [partition for partition, start in starts.items() if start.floor is None and partition in snapshots]
    places = {partition: log.place(SESSIONS, partition) for partition in useful}
    ends = await log.broker.ends(list(places.values())) if places else {}
    return {
        partition: shorten(start, snapshots[partition], ends[places[partition]]) if partition in places else start
        for partition, start in starts.items()
    }


async def find_starts(
    log: Log, partitions: Iterable[int], newest_grants: Mapping[int, int], *, groups: Sequence[str] = (ROLLOUT_GROUP,),
    store: SnapshotStore | None = None,
) -> dict[int, Start]:
    """Where to start in each partition. `newest_grants`: partition → offset of its newest Grant (absent: −1).

    Positions and snapshots are asked for at the same time: a takeover waits for the slower answer alone.
    """
    places = {partition: log.place(SESSIONS, partition) for partition in partitions}
    if store is None:
        return await _by_position(log, places, newest_grants, groups)
    snapshots: dict[int, Snapshot] = {}

    async def look() -> None:
        snapshots.update(await store.find(places))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(look)
        starts = await _by_position(log, places, newest_grants, groups)
    return await shortened(log, starts, snapshots)


async def _by_position(
    log: Log, places: Mapping[int, Place], newest_grants: Mapping[int, int], groups: Sequence[str]
) -> dict[int, Start]:
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
