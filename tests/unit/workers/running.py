"""Roles on the broker in memory: start one, wait for what it writes, kill it without a last word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from schemas.record import Record
from schemas.topics import Topic
from streams.broker import Message
from streams.codec import Entry, decode, encode
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Role, Watch
from streams.topics import ensure_topics

DEADLINE_S = 20.0
NAMESPACE = "test."

R = TypeVar("R", bound=Record)


async def memory_log(partitions: int = 2, role: str = "test") -> Log:
    """A fresh broker in memory with all topics."""
    broker = MemoryBroker()
    await ensure_topics(broker, NAMESPACE, partitions)
    return Log(broker, NAMESPACE, role)


def append(log: Log, topic: Topic, partition: int, record: Record) -> int:
    """Put a record at the end of a partition, as any other process would."""
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    return broker.append(encode(log.name(topic), partition, record))


def entries(log: Log, topic: Topic, kind: type[R], partition: int | None = None) -> list[Entry[R]]:
    """All committed records of a kind, in log order within each partition."""
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    found: list[Entry[R]] = []
    number = 0
    while True:
        place = log.place(topic, number)
        if place not in broker._logs:
            return found
        messages: Sequence[Message] = broker.log(place).read(broker.log(place).start, 1 << 30, committed=True)[0]
        if partition in (None, number):
            found += [entry for entry in (decode(topic, message) for message in messages) if isinstance(entry.record, kind)]
        number += 1


def records(log: Log, topic: Topic, kind: type[R], partition: int | None = None) -> list[R]:
    """As `entries`, the records alone."""
    return [entry.record for entry in entries(log, topic, kind, partition)]


@asynccontextmanager
async def running(role: Role, log: Log) -> AsyncIterator[None]:
    """The role, from its readiness to its clean stop."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(role, log, Watch())
        yield
        tasks.cancel_scope.cancel()


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition.

    :raises AssertionError: it did not come true within DEADLINE_S.
    """
    with anyio.move_on_after(DEADLINE_S):
        while not condition():
            await anyio.sleep(0.002)
        return
    raise AssertionError(f"never came: {what}")
