"""Where the assembler begins in each partition (R5): at its own Position, else at the earliest record from which the log can be folded.

Where retention passed its own Position the owners' may stand, and that one alone is not enough: owners forget a session at its Close, so
sessions before their Position have ended, and their Trajectories may be missing. It says, however, which epoch is in force there. With the
Claims that stand before it the assembler knows from where on that epoch was in force, and folds what is left from there.

Invariants: a fold from `earliest` agrees with the whole fold on every session that opened there or later; it never begins behind the
owners' Position, nor before the first record left; without any Position nothing counts before a reset.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from schemas.errors import BrokerUnavailable
from schemas.grant import Grant
from schemas.identity import START, Position
from schemas.session import Claim
from schemas.topics import GRANTS, SESSIONS
from streams.log import Log
from streams.table import open_table
from workers.positions import ROLLOUT_GROUP, Start, choose

__all__ = ["GROUP", "earliest", "find_starts"]

GROUP = "assembler"
READ_S = 30.0
"""How long the next records before the owners' Position may take to arrive."""

logger = structlog.get_logger()


async def find_starts(log: Log, partitions: Iterable[int]) -> dict[int, Start]:
    """Where to start in each partition. A log from which nothing is gone is read from its start, wherever the owners stand.

    :raises BrokerUnavailable: the broker does not answer.
    :raises RetentionPassed: retention took records while they were looked at: ask again.
    """
    places = {partition: log.place(SESSIONS, partition) for partition in partitions}
    firsts = await log.broker.starts(list(places.values()))
    own, owners = [
        {place.partition: position for place, found in committed.items() if (position := _position(*found)) is not None}
        for committed in [await log.broker.committed(log.group(group), list(places.values())) for group in (GROUP, ROLLOUT_GROUP)]
    ]
    lost = {partition: firsts[place] for partition, place in places.items() if firsts[place] > own.get(partition, START).offset}
    newest = await _newest_grants(log) if lost else {}
    owners |= {partition: await _reach_back(log, partition, first, owners) for partition, first in lost.items() if partition in owners}
    return {
        partition: choose(firsts[place], [own.get(partition, START), owners.get(partition)], newest.get(partition, -1))
        for partition, place in places.items()
    }


def earliest(first: int, owners: Position, claims: Iterable[tuple[int, int]]) -> Position:
    """From where the log can be folded. `first`: the first record left; `claims`: (offset, epoch) of those between it and `owners`.

    The epoch in force at the owners' Position came with the first Claim of it. Where that is gone, it was in force at `first` already.
    """
    came = next((offset for offset, epoch in claims if epoch == owners.epoch), None)
    return Position(first if came is None else came + 1, owners.epoch)


async def _reach_back(log: Log, partition: int, first: int, owners: Mapping[int, Position]) -> Position:
    position = owners[partition]
    if position.offset < first:
        return position
    reached = earliest(first, position, await _claims(log, partition, first, position.offset))
    logger.warning(
        "retention passed the Position: sessions that opened before are lost", partition=partition, first=first, begins=reached.offset
    )
    return reached


async def _claims(log: Log, partition: int, first: int, end: int) -> list[tuple[int, int]]:
    """The Claims from `first` to before `end`. Other records are not even decoded."""
    place, found = log.place(SESSIONS, partition), list[tuple[int, int]]()
    async with log.broker.reader({place: first}) as reader:
        while (at := reader.position(place)) < end:
            messages = await reader.read(timeout_s=READ_S)
            if reader.position(place) == at:
                raise BrokerUnavailable(f"the records of sessions {partition} before {end} did not come within {READ_S:.0f} s")
            claims = [each for each in messages if each.offset < end and dict(each.headers).get("type") == Claim.type_name().encode()]
            found += [(entry.offset, entry.record.epoch) for entry in await log.decode(SESSIONS, claims) if isinstance(entry.record, Claim)]
    return found


def _position(offset: int, metadata: str) -> Position | None:
    """None where a tool committed an offset without an epoch: nobody knows what was in force there."""
    try:
        return Position.parse(offset, metadata)
    except ValueError:
        return None


async def _newest_grants(log: Log) -> dict[int, int]:
    async with open_table(log, GRANTS) as grants:
        rows = [(entry.record, entry.offset) for entry in grants.rows.values()]
    return {record.partition: offset for record, offset in rows if isinstance(record, Grant)}
