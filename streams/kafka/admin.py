"""Questions about topics, and about first and last offsets.

By librdkafka's admin client, in its own threads: one connection for the life of the process, where aiokafka would need a new client for
each question. Not for committed offsets: it reads their metadata beyond its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import cached_property
from typing import Any, TypeVar

import anyio
from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType

from schemas.errors import BrokerError, BrokerUnavailable, TopicMismatch
from streams.broker import Place, TopicSpec
from streams.kafka.client import METADATA_MAX_AGE_MS, Connection

K = TypeVar("K")
T = TypeVar("T")

REQUEST_S = 5.0
RETRY_S = 0.1

_MISSING = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._NOENT, KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})
_LATER = frozenset({
    KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._WAIT_COORD, KafkaError.REQUEST_TIMED_OUT,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError.NOT_COORDINATOR,
    KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.NOT_CONTROLLER, KafkaError.NETWORK_EXCEPTION,
    KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH, KafkaError.OFFSET_NOT_AVAILABLE,
})

Ask = Callable[[AdminClient], Mapping[K, "Future[Any]"]]


class _AskAgain(Exception):
    """The cluster said "later"."""


class Admin:
    """Questions to the cluster. Each is asked again until it is answered or the deadline passes."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @cached_property
    def _client(self) -> AdminClient:
        return AdminClient({
            "bootstrap.servers": self._connection.bootstrap,
            "client.id": self._connection.client_id,
            "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
            "reconnect.backoff.max.ms": 500,
            "log_level": 2,  # a broker that is away is reported by the call that fails, not by a line for every attempt to connect
        })

    async def partitions(self, topic: str) -> int:
        """See `streams.broker.Broker.partitions`."""
        return (await self._partition_counts([topic])).get(topic, 0)

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        """See `streams.broker.Broker.starts`."""
        return await self._offsets(places, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)

    async def ends(self, places: Sequence[Place], *, committed: bool) -> dict[Place, int]:
        """See `streams.broker.Broker.ends`."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return await self._offsets(places, OffsetSpec.latest(), isolation)

    async def offsets_at(self, places: Sequence[Place], timestamp_ms: int) -> dict[Place, int]:
        """See `streams.broker.Broker.offsets_at`. Kafka says −1 where there is none."""
        ends = await self.ends(places, committed=False)
        found = await self._offsets(places, OffsetSpec.for_timestamp(timestamp_ms), IsolationLevel.READ_UNCOMMITTED)
        return {place: offset if offset >= 0 else ends[place] for place, offset in found.items()}

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See `streams.broker.Broker.create_topics`. Returns once all partitions can be asked for their ends."""
        if not specs:
            return
        topics = [NewTopic(spec.name, spec.partitions, config=dict(spec.config)) for spec in specs]
        await self._ask("create topics", lambda client: client.create_topics(topics, request_timeout=REQUEST_S),
                        allow=frozenset({KafkaError.TOPIC_ALREADY_EXISTS}))
        with anyio.move_on_after(self._connection.deadline_s):
            while not await self._ready([spec.name for spec in specs]):  # noqa: ASYNC110 - the event happens in another process
                await anyio.sleep(RETRY_S)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """See `streams.broker.Broker.describe_topics`. The configuration is the whole of it, defaults included."""
        counts = await self._partition_counts(names)
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in counts]
        if not resources:
            return {}
        found = await self._ask("describe topics", lambda client: client.describe_configs(resources, request_timeout=REQUEST_S))
        configs = {resource.name: {key: entry.value for key, entry in config.items()} for resource, config in found.items()}
        return {name: TopicSpec(name, counts[name], config) for name, config in configs.items()}

    async def delete_topics(self, names: Sequence[str]) -> None:
        """See `streams.broker.Broker.delete_topics`."""
        if names:
            await self._ask("delete topics", lambda client: client.delete_topics(list(names), request_timeout=REQUEST_S), allow=_MISSING)

    async def _ready(self, names: Sequence[str]) -> bool:
        counts = await self._partition_counts(names)
        places = [Place(name, index) for name, count in counts.items() for index in range(count)]
        try:
            await self.starts(places)
        except TopicMismatch:
            return False
        return len(counts) == len(set(names))

    async def _partition_counts(self, names: Sequence[str]) -> dict[str, int]:
        if not names:
            return {}
        topics = TopicCollection(list(names))
        found = await self._ask(
            "describe topics", lambda client: client.describe_topics(topics, request_timeout=REQUEST_S), allow=_MISSING
        )
        return {name: len(description.partitions) for name, description in found.items()}

    async def _offsets(self, places: Sequence[Place], spec: OffsetSpec, isolation: IsolationLevel) -> dict[Place, int]:
        if not places:
            return {}
        wanted = {TopicPartition(*place): spec for place in places}

        async def once() -> dict[TopicPartition, Any]:
            try:
                return await self._settle(lambda client: client.list_offsets(
                    wanted, isolation_level=isolation, request_timeout=REQUEST_S), "offsets", frozenset())
            except TopicMismatch as error:  # librdkafka says "no leaders" also while it cannot reach any broker
                await self._require(places)
                raise _AskAgain(str(error)) from error

        found = await self._again(once, "offsets")
        return {Place(each.topic, each.partition): int(result.offset) for each, result in found.items()}

    async def _require(self, places: Sequence[Place]) -> None:
        counts = await self._partition_counts(sorted({place.topic for place in places}))
        for place in places:
            if place.partition >= counts.get(place.topic, 0):
                raise TopicMismatch(f"there is no partition {place.topic}/{place.partition}")

    async def _ask(self, what: str, ask: Ask[K], *, allow: frozenset[int] = frozenset()) -> dict[K, Any]:
        """The answers by key, without those that failed with a code in `allow`."""
        return await self._again(lambda: self._settle(ask, what, allow), what)

    async def _settle(self, ask: Ask[K], what: str, allow: frozenset[int]) -> dict[K, Any]:
        answers: dict[K, Any] = {}
        for key, future in ask(self._client).items():
            answer = asyncio.wrap_future(future)
            answer.add_done_callback(_take_note)
            try:
                # Shielded: librdkafka's thread answers the future later, and would fail on a cancelled one.
                answers[key] = await asyncio.shield(answer)
            except KafkaException as error:
                if error.args[0].code() not in allow:
                    raise _error(error.args[0], what) from error
        return answers

    async def _again(self, once: Callable[[], Awaitable[T]], what: str) -> T:
        said = ""
        with anyio.move_on_after(self._connection.deadline_s):
            while True:
                try:
                    return await once()
                except _AskAgain as error:
                    said = str(error)
                    await anyio.sleep(RETRY_S)
        raise BrokerUnavailable(f"{what}: no answer from {self._connection.bootstrap} within {self._connection.deadline_s:.0f} s {said}")


def _take_note(answer: asyncio.Future[Any]) -> None:
    """Where the question was given up nobody else does, and asyncio would log an error that was never looked at."""
    if not answer.cancelled():
        answer.exception()


def _error(error: KafkaError, what: str) -> Exception:
    said = f"{what}: {error.str()}"
    if error.code() in _LATER:
        return _AskAgain(said)
    if error.code() in _MISSING:
        return TopicMismatch(said)
    return BrokerError(said)
