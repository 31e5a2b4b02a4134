"""The real broker: hands out the clients of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager

from streams.broker import Broker, GroupReader, Offsets, Place, Producer, Reader, TopicSpec, Transaction
from streams.kafka.admin import Admin
from streams.kafka.client import Connection, limit_client_logs
from streams.kafka.connection import guard_connections
from streams.kafka.group import open_group_reader
from streams.kafka.offsets import commit_offsets, committed_offsets
from streams.kafka.producer import open_producer
from streams.kafka.reader import open_reader
from streams.kafka.transaction import open_transaction


class KafkaBroker(Broker):
    """A Kafka cluster at `bootstrap` (host:port, comma-separated).

    `deadline_s`: how long a call may wait for the cluster before it is BrokerUnavailable, and a write before it is OutcomeUnknown.
    """

    def __init__(self, bootstrap: str, *, client_id: str, deadline_s: float = 30.0) -> None:
        limit_client_logs()
        guard_connections()
        self._connection = Connection(bootstrap, client_id, deadline_s)
        self._admin = Admin(self._connection)

    def reader(self, positions: Mapping[Place, int], *, committed: bool = False) -> AbstractAsyncContextManager[Reader]:
        """See `streams.broker.Broker`, as for all that follow."""
        return open_reader(self._connection, positions, committed=committed)

    def group_reader(
        self, group: str, topics: Sequence[str], *, committed: bool = False
    ) -> AbstractAsyncContextManager[GroupReader]:
        """Entering waits for the first assignment."""
        return open_group_reader(self._connection, group, topics, committed=committed)

    def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AbstractAsyncContextManager[Producer]:
        """`compress`: zstd."""
        return open_producer(self._connection, linger_ms=linger_ms, compress=compress)

    def transaction(self, transactional_id: str) -> AbstractAsyncContextManager[Transaction]:
        """Entering fences the older one."""
        return open_transaction(self._connection, transactional_id)

    async def partitions(self, topic: str) -> int:
        """How many partitions the topic has; 0 where it does not exist."""
        return await self._admin.partitions(topic)

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        """The first offset left in each partition."""
        return await self._admin.starts(places)

    async def ends(self, places: Sequence[Place], *, committed: bool = False) -> dict[Place, int]:
        """The offset after the last readable record of each partition."""
        return await self._admin.ends(places, committed=committed)

    async def offsets_at(self, places: Sequence[Place], timestamp_ms: int) -> dict[Place, int]:
        """The first offset stamped then or later, else the end."""
        return await self._admin.offsets_at(places, timestamp_ms)

    async def commit(self, group: str, offsets: Offsets) -> None:
        """Commit for a group without members."""
        await commit_offsets(self._connection, group, offsets)

    async def committed(self, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
        """What stands committed; absent where nothing."""
        return await committed_offsets(self._connection, group, places)

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create those that do not exist."""
        await self._admin.create_topics(specs)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """Those that exist, with their whole configuration."""
        return await self._admin.describe_topics(names)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Delete these and all that they hold."""
        await self._admin.delete_topics(names)
