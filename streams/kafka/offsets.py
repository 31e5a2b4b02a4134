"""Offsets committed under a group, with their metadata: for members, and for groups that have none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

import anyio
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from streams.broker import Offsets, Place
from streams.kafka.client import RETRY_BACKOFF_MS, Connection, close, may_pass


async def fetch_committed(consumer: AIOKafkaConsumer, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
    """What the consumer's group committed. aiokafka's own `committed` drops the metadata.

    Asked again for as long as the coordinator is not there: aiokafka itself does so for some of its answers only.
    """
    partitions = [TopicPartition(*place) for place in places]
    while True:
        try:
            found = await consumer._coordinator.fetch_committed_offsets(partitions)
            break
        except KafkaError as error:
            if not may_pass(error):
                raise
            await anyio.sleep(RETRY_BACKOFF_MS / 1000)
    return {Place(*partition): (int(each.offset), each.metadata or "") for partition, each in found.items() if each.offset >= 0}


async def committed_offsets(connection: Connection, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
    """See `streams.broker.Broker.committed`."""
    if not places:
        return {}
    async with _outsider(connection, group, places) as consumer:
        return await connection.within(fetch_committed(consumer, places), f"offsets of group {group}")


async def commit_offsets(connection: Connection, group: str, offsets: Offsets) -> None:
    """See `streams.broker.Broker.commit`.

    :raises BrokerError: the group has members.
    """
    if not offsets:
        return
    async with _outsider(connection, group, offsets) as consumer:
        wanted = {TopicPartition(*place): value for place, value in offsets.items()}
        await connection.within(consumer.commit(wanted), f"commit for group {group}")


@asynccontextmanager
async def _outsider(connection: Connection, group: str, places: Iterable[Place]) -> AsyncIterator[AIOKafkaConsumer]:
    """A consumer that speaks for a group without joining it."""

    def make() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(**connection.settings(), group_id=group, enable_auto_commit=False)
        consumer.assign([TopicPartition(*place) for place in places])
        return consumer

    consumer = await connection.started(make, f"speak for group {group}")
    try:
        yield consumer
    finally:
        await close(consumer)
