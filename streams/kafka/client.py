"""What every aiokafka client has in common: its settings, deadlines on its calls, the end of its life, and a bound on what it logs."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, TypeVar

import anyio
from aiokafka import errors
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    KafkaTimeoutError,
    StaleLeaderEpochCodeError,
    UnknownTopicOrPartitionError,
)

from schemas.errors import BrokerError, BrokerUnavailable, TopicMismatch

REQUEST_TIMEOUT_MS = 5_000
METADATA_MAX_AGE_MS = 2_000
RETRY_BACKOFF_MS = 100
"""Short enough that a frozen or killed leader stalls its clients for seconds; at the defaults it is 40 s and five minutes."""

CLOSE_S = 5.0
"""How long a client may take to flush, leave its group and close; then it is dropped."""

RECONNECT_PAUSE_S = 0.2

NEWS_MS = REQUEST_TIMEOUT_MS / 2
"""A client that looks for a topic asks ten times a second, and gives up after REQUEST_TIMEOUT_MS: an answer this old is none."""


class Client(Protocol):
    """What consumers and producers share."""

    async def start(self) -> None:
        """Connect."""

    async def stop(self) -> None:
        """Flush and disconnect."""


C = TypeVar("C", bound=Client)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the cluster is, who asks, and how long an answer may take (seconds)."""

    bootstrap: str
    client_id: str
    deadline_s: float

    def settings(self) -> dict[str, str | int]:
        """Keyword arguments of every aiokafka client."""
        return {
            "bootstrap_servers": self.bootstrap,
            "client_id": self.client_id,
            "request_timeout_ms": REQUEST_TIMEOUT_MS,
            "metadata_max_age_ms": METADATA_MAX_AGE_MS,
            "retry_backoff_ms": RETRY_BACKOFF_MS,
        }

    async def within(self, call: Awaitable[T], what: str) -> T:
        """The answer to a call, or an error of ours within the deadline.

        :raises BrokerUnavailable: no answer came, or one that says "later".
        :raises TopicMismatch: there is no such partition.
        :raises BrokerError: the broker refused.
        """
        try:
            with anyio.fail_after(self.deadline_s):
                return await call
        except TimeoutError as error:
            raise BrokerUnavailable(f"{what}: no answer from {self.bootstrap} within {self.deadline_s:.0f} s") from error
        except KafkaError as error:
            raise translated(error, what) from error

    async def started(self, make: Callable[[], C], what: str) -> C:
        """A started client; tries again while nobody listens at the address.

        :raises BrokerUnavailable: nobody answered within the deadline.
        :raises TopicMismatch: a topic that it was made for does not exist.
        """
        return await self.within(_start_until_it_answers(make), what)


async def _start_until_it_answers(make: Callable[[], C]) -> C:
    while True:
        client = make()
        try:
            await _start(client)
        except BaseException as error:
            await close(client)
            if not _may_start_later(client, error):
                raise
            await anyio.sleep(RECONNECT_PAUSE_S)
        else:
            return client


def _may_start_later(client: Client, error: BaseException) -> bool:
    if isinstance(error, UnknownTopicOrPartitionError):
        return not _knows_the_topics(client)
    return isinstance(error, KafkaError) and may_pass(error)


def _knows_the_topics(client: Client) -> bool:
    """Whether the cluster told this client lately which topics there are. aiokafka says `unknown topic`, too, where no answer came."""
    cluster = (getattr(client, "_client", None) or getattr(client, "client", None)).cluster  # type: ignore[union-attr]
    return time.time() * 1000 - float(cluster._last_successful_refresh_ms) < NEWS_MS


async def _start(client: Client) -> None:
    """Start a client. Cut off while it connects it would leak its first socket: when cancelled, it has CLOSE_S to come to an end."""
    failures: list[KafkaError] = []
    patience = anyio.CancelScope(shield=True)
    done = anyio.Event()

    async def start() -> None:
        with patience:
            try:
                await client.start()
            except KafkaError as error:
                failures.append(error)
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(start)
        try:
            await done.wait()
        finally:
            patience.deadline = anyio.current_time() + CLOSE_S
    if failures:
        raise failures[0]


async def close(client: Client) -> None:
    """Stop a client, cancelled or not, within CLOSE_S; then let go of its sockets.

    Inside the shield nobody but the deadline cancels: a CancelledError here is the deadline's own, or the one that aiokafka's consumer
    raises from `stop` and its fetcher's `close`, although nobody cancelled it, where a fetch waits to be tried again. Neither is the
    caller's business, but both leave the rest undone. Let through, it would end the caller's task group without an error.
    """
    fetcher, connections = getattr(client, "_fetcher", None), getattr(client, "_client", None) or getattr(client, "client", None)
    for end in (client.stop, *(part.close for part in (fetcher, connections) if part is not None)):
        with anyio.move_on_after(CLOSE_S, shield=True), suppress(KafkaError, asyncio.CancelledError):
            await end()


def translated(error: KafkaError, what: str) -> BrokerError:
    """The error of ours that says whether trying again may help."""
    said = f"{what}: {type(error).__name__} {error}"
    if isinstance(error, UnknownTopicOrPartitionError):
        return TopicMismatch(said)
    return BrokerUnavailable(said) if may_pass(error) else BrokerError(said)


def may_pass(error: KafkaError) -> bool:
    """Whether the same question may be answered later. A topic that is missing is no matter of waiting."""
    kind = _kind(error)
    is_passing = kind.retriable or issubclass(kind, (KafkaConnectionError, KafkaTimeoutError, StaleLeaderEpochCodeError))
    return is_passing and not issubclass(kind, UnknownTopicOrPartitionError)


def _kind(error: KafkaError) -> type[KafkaError]:
    """What the broker said. Where aiokafka does not expect an answer, its name is left as text: `KafkaError("RequestTimedOutError()")`."""
    if type(error) is not KafkaError or not error.args:
        return type(error)
    named = getattr(errors, str(error.args[0]).partition("(")[0], None)
    return named if isinstance(named, type) and issubclass(named, KafkaError) else KafkaError


class _LogLimit(logging.Filter):
    """Lets each message of a client through once in a while: with the broker away aiokafka logs a thousand lines a second."""

    INTERVAL_S = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, str], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        template = (record.name, str(record.msg))
        if record.created - self._passed.get(template, 0.0) < self.INTERVAL_S:
            return False
        self._passed[template] = record.created
        return True


_LIMIT = _LogLimit()
_LOGGERS = (
    "aiokafka", "aiokafka.conn", "aiokafka.cluster", "aiokafka.consumer.consumer", "aiokafka.consumer.fetcher",
    "aiokafka.consumer.group_coordinator", "aiokafka.producer.producer", "aiokafka.producer.sender",
)


def limit_client_logs() -> None:
    """Bound what aiokafka writes. Filters do not reach child loggers: each gets it. Doing it twice changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_LIMIT)
