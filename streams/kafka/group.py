"""A member of a consumer group: one assignor, explicit commits, and a generation of our own that grows with every change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.errors import CommitFailedError, IllegalStateError, KafkaError

from schemas.errors import BrokerError
from streams.broker import GroupReader, Message, Offsets, Place
from streams.kafka.client import Connection, close, translated
from streams.kafka.offsets import fetch_committed
from streams.kafka.reader import consumer_settings, poll

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_MS = 1_000


class _Assignment(ConsumerRebalanceListener):  # type: ignore[misc]
    """What this member holds, as the client tells it. aiokafka swallows what listeners raise: these do not.

    `last_word` is what to commit when it is taken back, `commit` how.
    """

    def __init__(self) -> None:
        self.held: frozenset[Place] = frozenset()
        self.generation = 0
        self.last_word: Callable[[], Offsets] = dict
        self.commit: Callable[[Offsets], Awaitable[bool]] | None = None

    async def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        offsets = {place: value for place, value in self.last_word().items() if place in self.held}
        self.held = frozenset()  # first: nothing that is committed from now on may stand after the last word
        self.generation += 1
        if offsets and self.commit is not None:
            with suppress(BrokerError):  # what stands is the word before, as if this process had died: no more than that
                await self.commit(offsets)

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.held = frozenset(Place(*partition) for partition in assigned)
        self.generation += 1


class KafkaGroupReader(GroupReader):
    """See `streams.broker.GroupReader`. Made by `open_group_reader`."""

    def __init__(self, consumer: AIOKafkaConsumer, assignment: _Assignment, connection: Connection) -> None:
        self._consumer, self._assignment, self._connection = consumer, assignment, connection
        assignment.commit = self._commit_within

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        """See `streams.broker.GroupReader.read`."""
        try:
            return await poll(self._consumer, timeout_s, limit)
        except KafkaError as error:
            raise translated(error, "read as a member of a group") from error

    def assignment(self) -> frozenset[Place]:
        """See `streams.broker.GroupReader.assignment`."""
        return self._assignment.held

    def generation(self) -> int:
        """See `streams.broker.GroupReader.generation`."""
        return self._assignment.generation

    async def commit(self, offsets: Offsets) -> bool:
        """See `streams.broker.GroupReader.commit`. Both of aiokafka's errors mean: not the holder any more.

        :raises BrokerUnavailable: no answer within the deadline.
        """
        return offsets.keys() <= self._assignment.held and await self._commit_within(offsets)

    def at_revocation(self, last_word: Callable[[], Offsets]) -> None:
        """See `streams.broker.GroupReader.at_revocation`."""
        self._assignment.last_word = last_word

    async def committed(self, place: Place) -> tuple[int, str] | None:
        """See `streams.broker.GroupReader.committed`."""
        found = await self._connection.within(fetch_committed(self._consumer, [place]), "committed offset")
        return found.get(place)

    def seek(self, place: Place, offset: int) -> None:
        """See `streams.broker.GroupReader.seek`."""
        if place in self._assignment.held:
            self._consumer.seek(TopicPartition(*place), offset)

    async def _commit_within(self, offsets: Offsets) -> bool:
        commit = self._commit({TopicPartition(*place): value for place, value in offsets.items()})
        return await self._connection.within(commit, "commit offsets")

    async def _commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> bool:
        try:
            await self._consumer.commit(offsets)
        except (CommitFailedError, IllegalStateError):
            return False
        return True


@asynccontextmanager
async def open_group_reader(
    connection: Connection, group: str, topics: Sequence[str], *, committed: bool
) -> AsyncIterator[KafkaGroupReader]:
    """A member for the length of a context, from its first assignment on.

    :raises BrokerUnavailable: the broker does not answer, or the group does not come to an assignment within the deadline.
    """
    assignment = _Assignment()

    def make() -> AIOKafkaConsumer:
        consumer = AIOKafkaConsumer(
            **consumer_settings(connection, committed=committed), auto_offset_reset="earliest", group_id=group,
            partition_assignment_strategy=(RoundRobinPartitionAssignor,),
            session_timeout_ms=SESSION_TIMEOUT_MS, heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe(list(topics), listener=assignment)
        return consumer

    consumer = await connection.started(make, f"join group {group}")
    try:
        yield KafkaGroupReader(consumer, assignment, connection)
    finally:
        await close(consumer)
