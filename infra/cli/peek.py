"""Reads topics for an operator: as records, without leaving a trace. What cannot be used is passed over; it is the roles' to bury."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio

from infra.cli.fleet import Fleet
from schemas.errors import BrokerUnavailable, LogError, TopicMismatch
from schemas.record import Record
from schemas.topics import GRANTS, NODES, SESSIONS, Topic
from streams.broker import Message, Place, Reader
from streams.codec import Entry, decode
from streams.log import Log

PATIENCE_S = 10.0
POLL_S = 0.5


class FleetReader:
    """`fleet` up to the last `update`. Made by `open_fleet`."""

    def __init__(self, log: Log, reader: Reader, fleet: Fleet) -> None:
        self._topics = {log.name(topic): topic for topic in (NODES, GRANTS)}
        self._reader = reader
        self.fleet = fleet

    async def update(self, *, timeout_s: float) -> None:
        """Take in what is new, or nothing within `timeout_s`."""
        self._take(await self._reader.read(timeout_s=timeout_s))

    async def catch_up(self, places: Sequence[Place]) -> None:
        """Take in all that stands now."""
        async for messages in _up_to_the_end(self._reader, places):
            self._take(messages)

    def _take(self, messages: Sequence[Message]) -> None:
        for message in messages:
            with suppress(LogError):
                self.fleet.apply(decode(self._topics[message.topic], message))


@asynccontextmanager
async def open_fleet(log: Log) -> AsyncIterator[FleetReader]:
    """The fleet, caught up.

    :raises TopicMismatch: the namespace has no topics.
    """
    partitions = await log.broker.partitions(log.name(SESSIONS))
    if not partitions:
        raise TopicMismatch(f"{log.name(SESSIONS)} does not exist")
    places = [log.place(topic, 0) for topic in (NODES, GRANTS)]
    # One reader for both: nothing in `nodes` is transactional, so waiting for commits costs it nothing.
    async with log.broker.reader(await log.broker.starts(places), committed=True) as reader:
        found = FleetReader(log, reader, Fleet(partitions))
        await found.catch_up(places)
        yield found


async def read_from(log: Log, topic: Topic, offsets: Mapping[int, int], *, committed: bool = False) -> list[Entry[Record]]:
    """All records of these partitions from these offsets (partition → offset) to the ends as they are now.

    `committed`: transactions only after their commit, also where the topic's own readers do not wait for it.
    """
    places = {log.place(topic, partition): offset for partition, offset in offsets.items()}
    async with log.broker.reader(places, committed=committed or topic.committed) as reader:
        return [entry async for messages in _up_to_the_end(reader, list(places)) for entry in await _usable(log, topic, messages)]


async def read_last(log: Log, topic: Topic, count: int) -> list[Entry[Record]]:
    """The records at the last `count` offsets of each partition."""
    places = await log.places(topic)
    starts, ends = await log.broker.starts(places), await log.broker.ends(places, committed=topic.committed)
    return await read_from(log, topic, {place.partition: max(starts[place], ends[place] - count) for place in places})


def now_ms() -> int:
    """Milliseconds since 1970, to be compared with the broker's stamps."""
    return round(time.time() * 1000)


async def _usable(log: Log, topic: Topic, messages: Sequence[Message]) -> list[Entry[Record]]:
    entries = []
    for message in messages:
        with suppress(LogError):
            entries.append(decode(topic, await log.blobs.check_out(message)))
    return entries


async def _up_to_the_end(reader: Reader, places: Sequence[Place]) -> AsyncIterator[list[Message]]:
    ends = {place: await reader.end(place) for place in places}
    until = anyio.current_time() + PATIENCE_S
    while any(reader.position(place) < end for place, end in ends.items()):
        if messages := await reader.read(timeout_s=POLL_S):
            until = anyio.current_time() + PATIENCE_S
            yield messages
        elif anyio.current_time() > until:
            raise BrokerUnavailable(f"the ends of {', '.join(place.topic for place in places)} did not come within {PATIENCE_S:.0f} s")
