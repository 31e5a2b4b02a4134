"""The writer: records go out in order, none is lost while its process lives, whatever happens to the broker.

A producer is broken for good after its first failure, and what it had not acknowledged may or may not stand in the log. The writer
then opens a new one and sends exactly the unacknowledged messages again, in the same order (R2). Readers ignore doubles: spans by
continuity, gateway records by nonce, trajectories by Close order, scores by first-counts. A large payload goes into the blob store
before its message is queued (`streams.blobs`); what is resent refers to it.

Invariants: messages of one partition reach the log first in the order of their `send` calls; memory in flight is bounded in bytes and
`send` waits for room; a process that could not write for `patience_s` ends with BrokerUnavailable instead of waiting for ever (R10).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio

from schemas.errors import BrokerUnavailable, OutcomeUnknown, TopicMismatch
from streams.blobs import Blobs
from streams.broker import Broker, Outgoing, Producer

FLUSH_S = 10.0
"""How long a closing writer waits for what it has sent."""
PAUSE_S = 0.1
"""Between two producers: a broker that is away refuses at once."""


FAILURES = (OutcomeUnknown, BrokerUnavailable, TopicMismatch)
"""What another producer may mend. A topic counts: a client that reaches no broker does not know any."""


class Receipt:
    """What `send` answers: await it for the offset. Nobody has to: the writer resends by itself."""

    __slots__ = ("_waiters", "answer", "message", "offset", "size_bytes")

    def __init__(self, message: Outgoing) -> None:
        self.message = message
        self.size_bytes = message.size_bytes
        self.offset: int | None = None
        self.answer: Awaitable[int] | None = None
        self._waiters: list[asyncio.Future[int]] = []

    def __await__(self) -> Generator[object, None, int]:
        if self.offset is None:
            waiter: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            return (yield from waiter)
        return self.offset

    def acknowledge(self, offset: int) -> None:
        """The log holds the message at `offset`."""
        self.offset = offset
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(offset)


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a writer batches, and how much it holds. `in_flight_bytes` stays below a producer's batch of 1 MiB per partition."""

    linger_ms: int = 0
    compress: bool = False
    in_flight_bytes: int = 16 << 20
    patience_s: float = 60.0


class Writer:
    """Made by `open_writer`. Any number of tasks may send."""

    def __init__(self, broker: Broker, options: WriterOptions, blobs: Blobs) -> None:
        self._broker = broker
        self._blobs = blobs
        self._options = options
        self._pending: deque[Receipt] = deque()
        self._bytes = 0
        self._producer: Producer | None = None
        self._turns: defaultdict[tuple[str, int], asyncio.Lock] = defaultdict(asyncio.Lock)
        """By partition: a small message must not overtake a large one, whose payload is being stored."""
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._failing_since: float | None = None
        self._has_ended = False
        self.resent = 0

    async def send(self, message: Outgoing) -> Receipt:
        """Hand over one message; waits for room, not for the log.

        :raises BrokerError: it is large, and there is no blob store.
        :raises BlobStoreUnavailable: it is large, and the blob store does not answer.
        :raises BrokerUnavailable: the writer has ended: there will be no room any more.
        """
        async with self._turns[message.topic, message.partition]:
            return await self._queue(await self._blobs.check_in(message))

    async def _queue(self, message: Outgoing) -> Receipt:
        async with self._turn:
            while self._producer is None or self._bytes > self._options.in_flight_bytes:
                await self._change()
                if self._has_ended:  # who is shielded against the end of the role would wait for ever; the others are cancelled by it
                    await anyio.sleep(PAUSE_S)
                    raise BrokerUnavailable("the writer has ended: what is sent now is not written")
            receipt = Receipt(message)
            try:
                receipt.answer = await self._producer.send(message)
            except FAILURES:
                self._producer = None  # nothing may overtake this message: the next producer sends it first
            self._pending.append(receipt)
            self._bytes += receipt.size_bytes
        self._changed.set()
        return receipt

    async def flush(self) -> None:
        """Wait until the log holds all that was sent, or until the writer has ended."""
        while self._pending and not self._has_ended:
            await self._change()

    async def run(self, scope: anyio.CancelScope) -> None:
        """One producer after another, until `scope` is cancelled.

        :raises BrokerUnavailable: nothing could be written for the patience.
        """
        try:
            with scope:
                await self._run()
        finally:
            self._producer, self._has_ended = None, True
            self._changed.set()

    async def _run(self) -> None:
        while True:
            try:
                async with self._broker.producer(linger_ms=self._options.linger_ms, compress=self._options.compress) as producer:
                    await self._resend(producer)
                    await self._acknowledge()
            except FAILURES as error:
                self._producer = None
                self._give_up_when_patience_ends(error)
                await anyio.sleep(PAUSE_S)

    async def _resend(self, producer: Producer) -> None:
        for receipt in self._pending:
            receipt.answer = None
        count = 0
        while count < len(self._pending):  # a send that was under way in the old producer may join the queue meanwhile
            receipt = self._pending[count]
            receipt.answer = await producer.send(receipt.message)
            count += 1
        self.resent += count
        self._producer = producer
        self._changed.set()

    async def _acknowledge(self) -> None:
        while True:
            while self._pending:
                receipt = self._pending[0]
                if receipt.answer is None:
                    raise OutcomeUnknown("the producer broke while a message was handed over")
                offset = await receipt.answer
                self._pending.popleft()
                self._bytes -= receipt.size_bytes
                self._failing_since = None
                receipt.acknowledge(offset)
            self._changed.set()
            await self._change()

    async def _change(self) -> None:
        if not self._has_ended:
            self._changed.clear()
            await self._changed.wait()

    def _give_up_when_patience_ends(self, error: Exception) -> None:
        now = anyio.current_time()
        self._failing_since = self._failing_since or now
        if now - self._failing_since > self._options.patience_s:
            raise BrokerUnavailable(f"nothing could be written for {self._options.patience_s:.0f} s: {error}") from error


@asynccontextmanager
async def open_writer(broker: Broker, options: WriterOptions | None = None, blobs: Blobs | None = None) -> AsyncIterator[Writer]:
    """A writer for the length of a context. Leaving it flushes, cancelled or not, for at most FLUSH_S seconds."""
    writer = Writer(broker, options or WriterOptions(), blobs or Blobs())
    scope = anyio.CancelScope(shield=True)  # the cancelled role still has last words to write
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(writer.run, scope)
        try:
            yield writer
        finally:
            with anyio.move_on_after(FLUSH_S, shield=True):
                await writer.flush()
            scope.cancel()
