"""The idempotent producer: batches that are open while they wait, one acknowledgement per batch, bounds in bytes and in seconds.

Messages are put into aiokafka's batch builders directly. That saves its future and its checks per message, and it puts all waiting for room
into one queue: thousands of tasks waiting inside aiokafka for the same partition wake each other up.

Invariants: messages of a partition are queued in the order of the `send` calls; at most MAX_IN_FLIGHT_BYTES are unacknowledged; a batch
not acknowledged within the deadline, or refused, breaks the producer, and then nothing more is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import Any

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError, KafkaTimeoutError

from schemas.errors import OutcomeUnknown, TopicMismatch
from streams.broker import Outgoing, Producer, check_outgoing
from streams.kafka.client import CLOSE_S, Connection, close, translated

MAX_BATCH_BYTES = 1 << 20
"""aiokafka's 16 KiB would be one small batch in flight per partition."""

MAX_IN_FLIGHT_BYTES = 16 << 20


class _Batch:
    """Messages that are acknowledged together. `answer` resolves with the offset of the first."""

    __slots__ = ("answer", "builder", "expiry", "size_bytes", "taken")

    def __init__(self, builder: Any, size_bytes: int, taken: Callable[[], bool], answer: asyncio.Future[Any]) -> None:
        self.builder = builder
        self.size_bytes = size_bytes
        self.answer = answer
        self.expiry: asyncio.TimerHandle | None = None
        self.taken = taken
        """Whether aiokafka counted its records: from then on another one would upset the sequence, though the builder still takes it."""


class _Acknowledgement:
    """An offset to come. Awaiting it twice, or cancelling an await, changes nothing."""

    __slots__ = ("_answer", "_index")

    def __init__(self, answer: asyncio.Future[Any], index: int) -> None:
        self._answer = answer
        self._index = index

    def __await__(self) -> Generator[Any, None, int]:
        try:
            first = self._answer.result() if self._answer.done() else (yield from asyncio.shield(self._answer))
        except KafkaError as error:
            raise OutcomeUnknown(f"a write was not acknowledged: {type(error).__name__} {error}") from error
        if first.offset < 0:  # a retry of a batch so old that the broker has forgotten where it stands
            raise OutcomeUnknown("the broker has the write, but not its offset")
        return int(first.offset) + self._index


class KafkaProducer(Producer):
    """See `streams.broker.Producer`. Made by `open_producer`."""

    def __init__(self, producer: AIOKafkaProducer, connection: Connection) -> None:
        self._producer = producer
        self._connection = connection
        self._open: dict[tuple[str, int], _Batch] = {}
        self._in_flight_bytes = 0
        self._turn = anyio.Lock()
        self._in_line = 0
        self._settled = anyio.Event()
        self._failure: str | None = None

    async def send(self, message: Outgoing) -> Awaitable[int]:
        """Queue one message: at once where its partition's batch is open and nobody waits for room, else in turn."""
        size_bytes = check_outgoing(message)
        if not self._in_line and self._in_flight_bytes < MAX_IN_FLIGHT_BYTES:
            batch = self._open.get((message.topic, message.partition))
            if batch is not None and (index := self._append(batch, message, size_bytes)) is not None:
                return _Acknowledgement(batch.answer, index)
        self._in_line += 1
        try:
            async with self._turn:
                return await self._send_in_turn(message, size_bytes)
        finally:
            self._in_line -= 1

    async def close(self) -> None:
        """Flush what is in flight, cancelled or not, for at most CLOSE_S; then end."""
        with anyio.move_on_after(CLOSE_S, shield=True):
            await self._producer.flush()
        if self._in_flight_bytes:
            self._break("it was closed before it was acknowledged")
        with anyio.move_on_after(CLOSE_S, shield=True):
            if self._failure is not None:
                await self._producer.client.close()  # else `stop` would wait for the requests that are under way
        await close(self._producer)

    def _append(self, batch: _Batch, message: Outgoing, size_bytes: int) -> int | None:
        """The message's place in the batch; None if the batch is full or on its way."""
        if batch.taken():
            return None
        appended = batch.builder.append(timestamp=None, key=message.key, value=message.value, headers=list(message.headers))
        if appended is None:
            return None
        batch.size_bytes += size_bytes
        self._in_flight_bytes += size_bytes
        return int(appended.offset)

    async def _send_in_turn(self, message: Outgoing, size_bytes: int) -> _Acknowledgement:
        place = (message.topic, message.partition)
        try:
            with anyio.fail_after(self._connection.deadline_s):
                await self._wait_for_room()
                batch = self._open.get(place)
                if batch is not None and (index := self._append(batch, message, size_bytes)) is not None:
                    return _Acknowledgement(batch.answer, index)
                return _Acknowledgement((await self._submit(message, size_bytes)).answer, 0)
        except TimeoutError as error:
            self._break(f"no room within {self._connection.deadline_s:.0f} s")
            raise OutcomeUnknown(f"no room for a message within {self._connection.deadline_s:.0f} s") from error

    async def _wait_for_room(self) -> None:
        while self._failure is None and self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES:
            self._settled = anyio.Event()
            await self._settled.wait()
        if self._failure is not None:
            raise OutcomeUnknown(f"this producer is broken; make another one: {self._failure}")

    async def _submit(self, message: Outgoing, size_bytes: int) -> _Batch:
        """Start a batch with this message. It stays open for others until aiokafka sends it."""
        builder = self._producer.create_batch()
        builder.append(timestamp=None, key=message.key, value=message.value, headers=list(message.headers))
        answer = await self._hand_over(builder, message.topic, message.partition)
        queued = self._producer._message_accumulator._batches[message.topic, message.partition][-1]
        batch = _Batch(builder, size_bytes, queued._drain_waiter.done, answer)
        batch.answer.add_done_callback(partial(self._settle, batch))
        batch.expiry = asyncio.get_running_loop().call_later(self._connection.deadline_s, self._break, "no answer within the deadline")
        self._in_flight_bytes += batch.size_bytes
        self._open[message.topic, message.partition] = batch
        return batch

    async def _hand_over(self, builder: Any, topic: str, partition: int) -> asyncio.Future[Any]:
        try:
            if partition not in await self._producer.partitions_for(topic):
                raise TopicMismatch(f"there is no partition {topic}/{partition}")
            while True:
                try:
                    return await self._producer.send_batch(builder, topic, partition=partition)  # type: ignore[no-any-return]
                except KafkaTimeoutError:
                    continue
        except KafkaError as error:
            if self._failure is not None:
                raise OutcomeUnknown(f"this producer is broken; make another one: {self._failure}") from error
            raise translated(error, f"send to {topic}/{partition}") from error

    def _settle(self, batch: _Batch, answer: asyncio.Future[Any]) -> None:
        if batch.expiry is not None:
            batch.expiry.cancel()
        self._in_flight_bytes -= batch.size_bytes
        if (error := answer.exception()) is not None:
            self._break(f"{type(error).__name__} {error}")
        self._settled.set()

    def _break(self, reason: str) -> None:
        """Broken for good: aiokafka itself would go on behind the hole, or retry for ever."""
        if self._failure is not None:
            return
        self._failure = reason
        self._open.clear()
        abandon(self._producer, reason)


def abandon(producer: AIOKafkaProducer, reason: str) -> None:
    """Send nothing more, and answer everything unacknowledged with an error. What is on its way may land.

    aiokafka has no such call. The loop keeps the event loop from complaining about errors that nobody waits for.
    """
    accumulator = producer._message_accumulator
    batches = [*chain.from_iterable(accumulator._batches.values()), *accumulator._pending_batches]
    accumulator.fail_all(KafkaError(f"abandoned: {reason}"))
    accumulator._batches.clear()
    unheard = [producer._txn_manager._transaction_waiter, *(batch._drain_waiter for batch in batches)]
    unheard += [future for batch in batches for future, _ in batch._msg_futures]
    for future in unheard:
        if future is not None and future.done() and not future.cancelled():
            future.exception()
    producer._sender.sender_task.cancel()


@asynccontextmanager
async def open_producer(connection: Connection, *, linger_ms: int, compress: bool) -> AsyncIterator[KafkaProducer]:
    """A started producer for the length of a context.

    :raises BrokerUnavailable: the broker does not answer.
    """

    def make() -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **connection.settings(), enable_idempotence=True, acks="all", linger_ms=linger_ms,
            compression_type="zstd" if compress else None, max_batch_size=MAX_BATCH_BYTES,
        )

    producer = KafkaProducer(await connection.started(make, "start a producer"), connection)
    try:
        yield producer
    finally:
        await producer.close()
