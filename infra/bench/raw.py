"""The yardstick of the stream benchmark: aiokafka alone, with the settings of `streams.kafka`, by a client as short as it can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from streams.broker import Place
from streams.kafka.client import Connection
from streams.kafka.producer import MAX_BATCH_BYTES
from streams.kafka.reader import consumer_settings

READ_LIMIT = 1000
"""As `streams.broker.Reader.read`."""


class RawWriter:
    """A producer of aiokafka."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer

    async def write(self, place: Place, key: bytes, values: list[bytes]) -> None:
        """Send all, then wait for each."""
        sent = [await self._producer.send(place.topic, value, key, place.partition) for value in values]
        for each in sent:
            await each


class RawReader:
    """A consumer of aiokafka with one partition."""

    def __init__(self, consumer: AIOKafkaConsumer) -> None:
        self._consumer = consumer

    async def read(self, count: int) -> None:
        """Read `count` messages."""
        while count > 0:
            batches = await self._consumer.getmany(timeout_ms=1000, max_records=READ_LIMIT)
            count -= sum(len(batch) for batch in batches.values())


@asynccontextmanager
async def open_raw_writer(connection: Connection) -> AsyncIterator[RawWriter]:
    """A started producer."""
    producer = AIOKafkaProducer(
        **connection.settings(), enable_idempotence=True, acks="all", linger_ms=0, max_batch_size=MAX_BATCH_BYTES
    )
    async with producer:
        yield RawWriter(producer)


@asynccontextmanager
async def open_raw_reader(connection: Connection, place: Place) -> AsyncIterator[RawReader]:
    """A started consumer at the first record of `place`."""
    consumer = AIOKafkaConsumer(**consumer_settings(connection, committed=False), auto_offset_reset="none")
    partition = TopicPartition(*place)
    consumer.assign([partition])
    async with consumer:
        consumer.seek(partition, 0)
        yield RawReader(consumer)
