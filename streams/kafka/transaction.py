"""One transaction on a transactional producer of its own, which is never used again: after a cancelled one the next would not begin."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from aiokafka import AIOKafkaProducer
from aiokafka.errors import InvalidProducerEpoch, KafkaError, ProducerFenced

from schemas.errors import OutcomeUnknown, Superseded
from streams.broker import Outgoing, Transaction, check_outgoing
from streams.failpoint import failpoint
from streams.kafka.client import CLOSE_S, Connection, close
from streams.kafka.producer import MAX_BATCH_BYTES, abandon

TRANSACTION_TIMEOUT_MS = 15_000
"""How long readers wait for a writer that died inside a transaction and has no successor."""

IN_COMMIT_S = 0.001
"""After so long the commit's request is on its way, and its answer is not there yet."""


class KafkaTransaction(Transaction):
    """See `streams.broker.Transaction`. Made by `open_transaction`."""

    def __init__(self, producer: AIOKafkaProducer, connection: Connection, name: str) -> None:
        self._producer, self._connection, self._name = producer, connection, name

    async def commit(self, messages: Sequence[Outgoing]) -> list[int]:
        """Order is correctness: send all; await every acknowledgement, or a failed one would commit without its record; commit."""
        for message in messages:
            check_outgoing(message)
        try:
            with anyio.fail_after(self._connection.deadline_s):
                offsets = await self._send_all(messages)
            failpoint("cas.after_send")
            asyncio.get_running_loop().call_later(IN_COMMIT_S, failpoint, "cas.in_commit")
            with anyio.fail_after(self._connection.deadline_s, shield=True):
                await self._producer.commit_transaction()
        except (ProducerFenced, InvalidProducerEpoch) as error:
            raise Superseded(f"a younger transaction of {self._name} began") from error
        except (KafkaError, TimeoutError) as error:
            raise OutcomeUnknown(f"transaction {self._name}: {type(error).__name__} {error}") from error
        return offsets

    async def _send_all(self, messages: Sequence[Outgoing]) -> list[int]:
        answers: list[asyncio.Future[Any]] = []
        for message in messages:
            headers = list(message.headers)
            answer = await self._producer.send(message.topic, message.value, message.key, message.partition, headers=headers)
            answer.add_done_callback(_heard)
            answers.append(answer)
        return [int((await answer).offset) for answer in answers]

    async def close(self) -> None:
        """Abort what is open, cancelled or not, within CLOSE_S; then end."""
        manager = self._producer._txn_manager
        with anyio.move_on_after(CLOSE_S, shield=True), suppress(KafkaError):
            if manager.is_in_transaction() and not manager.is_fatal_error():
                await self._producer.abort_transaction()
        abandon(self._producer, "the transaction is over")
        await close(self._producer)


def _heard(answer: asyncio.Future[Any]) -> None:
    """The first failure is raised; the event loop need not complain that nobody waited for the others."""
    if not answer.cancelled():
        answer.exception()


@asynccontextmanager
async def open_transaction(connection: Connection, name: str) -> AsyncIterator[KafkaTransaction]:
    """Start a producer with this transactional id, which fences the older one, and begin.

    :raises BrokerUnavailable: the broker does not answer.
    """

    def make() -> AIOKafkaProducer:
        return AIOKafkaProducer(
            **connection.settings(), transactional_id=name, transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, acks="all",
            max_batch_size=MAX_BATCH_BYTES,
        )

    producer = await connection.started(make, f"begin transaction {name}")
    transaction = KafkaTransaction(producer, connection, name)
    try:
        await connection.within(producer.begin_transaction(), f"begin transaction {name}")
        yield transaction
    finally:
        await transaction.close()
