"""The log reader: assigned partitions, positions that only it moves, and a watch over the client's silence.

Invariants: positions change by reading, `add` and `remove` alone, also when the client is replaced; a position that retention has passed is
an error; silence is believed only when the positions stand at the ends.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError, OffsetOutOfRangeError

from schemas.errors import BrokerUnavailable, RetentionPassed, TopicMismatch
from streams.broker import Message, Place, Reader
from streams.kafka.client import Connection, close, translated

FETCH_BYTES = 1 << 20
"""Larger fetches are decoded in one go and block the loop for a tenth of a second."""

FETCH_WAIT_MS = 100
"""How long the broker holds a fetch without data; also the longest that `add` waits for the fetch that is under way."""

SILENCE_S = 5.0
"""After so long without a message the reader asks whether there is any."""

PROBE_S = 2.0


async def poll(consumer: AIOKafkaConsumer, timeout_s: float, limit: int) -> list[Message]:
    """What the client has, in partition order. aiokafka's own timeout does not hold during a rebalance: the scope's does.

    Safe to cancel: aiokafka moves its positions in the same turn of the loop in which it returns.
    """
    batches: Mapping[TopicPartition, list[object]] = {}
    with anyio.move_on_after(timeout_s):
        batches = await consumer.getmany(timeout_ms=timeout_s * 1000, max_records=limit)
    return [
        Message(r.topic, r.partition, r.offset, r.timestamp, r.key, r.value, r.headers)  # type: ignore[attr-defined]
        for batch in batches.values()
        for r in batch
    ]


def consumer_settings(connection: Connection, *, committed: bool) -> dict[str, object]:
    """What log readers and group members share."""
    return {
        **connection.settings(),
        "enable_auto_commit": False,
        "isolation_level": "read_committed" if committed else "read_uncommitted",
        "fetch_max_wait_ms": FETCH_WAIT_MS,
        "fetch_max_bytes": FETCH_BYTES,
        "max_partition_fetch_bytes": FETCH_BYTES,
    }


class KafkaReader(Reader):
    """See `streams.broker.Reader`. Made by `open_reader`."""

    def __init__(self, consumer: AIOKafkaConsumer, connection: Connection, committed: bool) -> None:
        self._consumer, self._connection, self._committed = consumer, connection, committed
        self._heard_at = anyio.current_time()
        self._silent_since: float | None = None

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        """See `streams.broker.Reader.read`. After SILENCE_S without messages it may take longer than asked, to find out why."""
        found = await self._poll(timeout_s, limit)
        if not found and anyio.current_time() - self._heard_at > SILENCE_S:
            found = await self._question_silence(limit)
        if found:
            self._heard()
        return found

    def add(self, positions: Mapping[Place, int]) -> None:
        """See `streams.broker.Reader.add`. At once while data flows; on quiet partitions within FETCH_WAIT_MS."""
        _assign(self._consumer, {**self._positions(), **positions})

    def remove(self, places: Sequence[Place]) -> None:
        """See `streams.broker.Reader.remove`."""
        gone = frozenset(places)
        _assign(self._consumer, {place: position for place, position in self._positions().items() if place not in gone})

    def position(self, place: Place) -> int:
        """See `streams.broker.Reader.position`."""
        return _position(self._consumer, TopicPartition(*place))

    async def end(self, place: Place) -> int:
        """See `streams.broker.Reader.end`."""
        ends = await self._connection.within(self._ends([place]), f"end of {place.topic}/{place.partition}")
        return ends[place]

    async def close(self) -> None:
        """End the client."""
        await close(self._consumer)

    async def _poll(self, timeout_s: float, limit: int) -> list[Message]:
        try:
            return await poll(self._consumer, timeout_s, limit)
        except OffsetOutOfRangeError as error:
            await self._require_within(error)
            return []
        except KafkaError as error:
            raise translated(error, "read") from error

    async def _require_within(self, error: OffsetOutOfRangeError) -> None:
        """Kafka says the same of positions before the first record and beyond the end; of any, where the asked node is no longer right.

        :raises RetentionPassed: the position lies before the first record left.
        :raises TopicMismatch: it lies beyond the end.
        """
        ((partition, position),) = error.args[0].items()
        starts = await self._connection.within(self._consumer.beginning_offsets([partition]), "first record left")
        where = f"{partition.topic}/{partition.partition}: position {position}"
        if position < starts[partition]:
            raise RetentionPassed(f"{where}, the first record left is {starts[partition]}") from error
        if position > await self.end(Place(*partition)):
            raise TopicMismatch(f"{where} lies beyond the end") from error

    async def _question_silence(self, limit: int) -> list[Message]:
        """Nothing came for a while. Right, if the positions stand at the ends; else the client is stuck, and a new one takes over.

        :raises BrokerUnavailable: neither ends nor messages for the whole deadline.
        """
        if not await self._behind():
            self._heard()
            return []
        if found := await self._poll(PROBE_S, limit):
            return found
        now = anyio.current_time()
        self._silent_since = self._silent_since or now
        if now - self._silent_since > self._connection.deadline_s:
            raise BrokerUnavailable(f"nothing from {self._connection.bootstrap} for {now - self._heard_at:.0f} s")
        await self._replace_client()
        return []

    async def _behind(self) -> bool:
        positions = self._positions()
        try:
            with anyio.fail_after(PROBE_S):
                ends = await self._ends(list(positions))
        except (TimeoutError, KafkaError):
            return True
        return any(positions[place] < end for place, end in ends.items())

    async def _replace_client(self) -> None:
        fresh = await _connect(self._connection, self._positions(), self._committed)
        stale, self._consumer = self._consumer, fresh
        await close(stale)

    def _heard(self) -> None:
        self._heard_at = anyio.current_time()
        self._silent_since = None

    async def _ends(self, places: Sequence[Place]) -> dict[Place, int]:
        ends = await self._consumer.end_offsets([TopicPartition(*place) for place in places])
        return {Place(*partition): offset for partition, offset in ends.items()}

    def _positions(self) -> dict[Place, int]:
        return {Place(*partition): _position(self._consumer, partition) for partition in self._consumer.assignment()}


def _position(consumer: AIOKafkaConsumer, partition: TopicPartition) -> int:
    """aiokafka's own `position` is a coroutine, though it has nothing to wait for once a position is set."""
    state = consumer._subscription.subscription.assignment.state_value(partition)
    if state is None:
        raise KeyError(partition)
    return int(state.position)


def _assign(consumer: AIOKafkaConsumer, positions: Mapping[Place, int]) -> None:
    """Replace the assignment. aiokafka forgets all positions with it: they are set again in the same turn of the loop."""
    consumer.assign([TopicPartition(*place) for place in positions])
    for place, position in positions.items():
        consumer.seek(TopicPartition(*place), position)


async def _connect(connection: Connection, positions: Mapping[Place, int], committed: bool) -> AIOKafkaConsumer:
    def make() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**consumer_settings(connection, committed=committed), auto_offset_reset="none")
        consumer.assign([TopicPartition(*place) for place in positions])
        return consumer

    consumer = await connection.started(make, "start a reader")
    try:
        for place, position in positions.items():
            if place.partition not in (consumer.partitions_for_topic(place.topic) or ()):
                raise TopicMismatch(f"there is no partition {place.topic}/{place.partition}")
            consumer.seek(TopicPartition(*place), position)
    except BaseException:
        await close(consumer)
        raise
    return consumer


@asynccontextmanager
async def open_reader(connection: Connection, positions: Mapping[Place, int], *, committed: bool) -> AsyncIterator[KafkaReader]:
    """A reader for the length of a context.

    :raises BrokerUnavailable: the broker does not answer.
    :raises TopicMismatch: there is no such partition.
    """
    reader = KafkaReader(await _connect(connection, positions, committed), connection, committed)
    try:
        yield reader
    finally:
        await reader.close()
