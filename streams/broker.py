"""The contract of a broker: what the rest of the system may assume of Kafka, in bytes.

Two implementations hold it: `streams.kafka` (the real one) and `streams.memory` (the double). `tests/contract` runs one suite over both.
Names are full topic names, the namespace included; values are bytes. Records appear one layer up, in `streams.codec`.

Invariants that the suite checks:
- offsets of a partition grow; they may have gaps (transaction markers, aborted records), so `end` is compared with `position`, never with
  the last record plus one;
- a `committed` reader sees the records of a transaction together after its commit, or never;
- a second transaction of one id fences the first: the first can no longer commit;
- a producer keeps order within a partition and writes each message at most once, however often it retries; after one failed send it
  is broken for good, and what it had not acknowledged has an unknown outcome;
- a reader whose position retention has passed gets RetentionPassed, never a silent jump.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec

from schemas.errors import BrokerError

Headers = tuple[tuple[str, bytes], ...]

MAX_MESSAGE_BYTES = 1_000_000
"""The largest message that a producer takes (Kafka's own default limit is 1 MiB a batch); larger payloads belong into the blob store."""

MAX_METADATA = 4_096
"""Characters that may stand beside a committed offset (Kafka's own default limit)."""


class Place(NamedTuple):
    """One partition of one topic."""

    topic: str
    partition: int


class Message(msgspec.Struct, frozen=True):
    """What a reader gets: bytes, and where they stand. `timestamp_ms` is the broker's (LogAppendTime), milliseconds since 1970.

    A struct, not a dataclass: a frozen dataclass takes five times as long to make, which is a third of a read.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Outgoing(msgspec.Struct, frozen=True):
    """What a writer gives."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()

    @property
    def size_bytes(self) -> int:
        """Payload bytes, for bounds on what is in flight."""
        return (len(self.key) if self.key else 0) + (len(self.value) if self.value else 0) + 64


def check_outgoing(message: Outgoing) -> int:
    """Refuse, before it is queued, what Kafka would refuse later at the cost of the producer. Answers its size in bytes.

    :raises BrokerError: larger than MAX_MESSAGE_BYTES, or neither key nor value.
    """
    if message.key is None and message.value is None:
        raise BrokerError(f"a message for {message.topic} has neither key nor value")
    size_bytes = message.size_bytes
    if size_bytes > MAX_MESSAGE_BYTES:
        raise BrokerError(f"a message of {size_bytes} bytes for {message.topic}: put its payload into the blob store")
    return size_bytes


Offsets = Mapping[Place, tuple[int, str]]
"""Next offsets with their metadata, as they are committed."""


def check_offsets(offsets: Offsets) -> None:
    """Refuse what a broker would refuse.

    :raises BrokerError: a metadata is longer than MAX_METADATA.
    """
    for place, (_, metadata) in offsets.items():
        if len(metadata) > MAX_METADATA:
            raise BrokerError(f"commit {place.topic}/{place.partition}: {len(metadata)} characters of metadata, {MAX_METADATA} may be")


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it is to be created: `config` in Kafka's own names."""

    name: str
    partitions: int
    config: Mapping[str, str]


class Reader(Protocol):
    """Reads partitions by position; nobody else has a say (Kafka's `assign`). Not for concurrent use."""

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        """Up to `limit` messages in partition order, as soon as there are any; empty after `timeout_s`. Safe to cancel: nothing is lost.

        :raises RetentionPassed: a position lies before the first record left.
        :raises BrokerUnavailable: no answer for longer than the broker's deadline.
        """
        ...

    def add(self, positions: Mapping[Place, int]) -> None:
        """Read these partitions, too, from these offsets. The positions of the others stand."""
        ...

    def remove(self, places: Sequence[Place]) -> None:
        """Read these partitions no more. Messages already fetched for them are not returned."""
        ...

    def position(self, place: Place) -> int:
        """The next offset that `read` will look at; it passes gaps."""
        ...

    async def end(self, place: Place) -> int:
        """The offset after the last readable one now (the last stable offset for a `committed` reader).

        :raises BrokerUnavailable: no answer within the deadline.
        """
        ...


class GroupReader(Protocol):
    """One member of a consumer group: the broker hands it partitions. Only explicit commits."""

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        """As `Reader.read`, for the partitions assigned at the moment.

        Each generation starts every partition at its committed offset, those that this member held before too; where nothing was
        committed, or retention passed what was, at the first record left.
        """
        ...

    def assignment(self) -> frozenset[Place]:
        """The partitions that this member holds now."""
        ...

    def generation(self) -> int:
        """Grows with every change of the assignment. State kept for partitions is dropped when it changes."""
        ...

    async def commit(self, offsets: Offsets) -> bool:
        """Commit (next offset, metadata). False: this member no longer holds one of the partitions; nothing was committed for it.

        :raises BrokerError: a metadata is longer than MAX_METADATA.
        """
        ...

    def at_revocation(self, last_word: Callable[[], Offsets]) -> None:
        """What a living member commits when its partitions are dealt anew, before anybody, itself included, is told who holds them.

        `last_word` is asked at that moment; it must not raise. A member that died, or that the group gave up, says nothing; nor does one
        that leaves: it commits before. If that commit fails, what it committed before stands.
        """
        ...

    async def committed(self, place: Place) -> tuple[int, str] | None:
        """What the group committed last for a partition."""
        ...

    def seek(self, place: Place, offset: int) -> None:
        """Continue an assigned partition from another offset."""
        ...


class Producer(Protocol):
    """An idempotent producer's single life. After the first failure it is broken: make another one.

    `send` queues a message and answers with an awaitable of its offset: in order of the calls per partition. It waits for room in the
    producer's buffer. A cancelled await says nothing about the write. The awaitable raises OutcomeUnknown when the producer broke.
    """

    async def send(self, message: Outgoing) -> Awaitable[int]:
        """Queue one message.

        :raises OutcomeUnknown: the producer is broken, or has no room within its deadline.
        """
        ...


class Transaction(Protocol):
    """One transaction of one transactional id. Beginning it fenced every older one of that id.

    Leaving its context without `commit` aborts.
    """

    async def commit(self, messages: Sequence[Outgoing]) -> list[int]:
        """Send all, wait for every acknowledgement, then commit. Answers their offsets.

        `committed` readers see them soon after, not at once; the next transaction of this id begins after they can.

        :raises Superseded: a younger transaction of this id began.
        :raises OutcomeUnknown: the answer to the commit never came; run the whole write again.
        """
        ...


class Broker(Protocol):
    """A connection to a cluster. Everything it hands out is an async context manager that closes within a deadline, cancelled or not."""

    def reader(self, positions: Mapping[Place, int], *, committed: bool = False) -> AbstractAsyncContextManager[Reader]:
        """A log reader from these positions. `committed`: transactions only after their commit."""
        ...

    def group_reader(
        self, group: str, topics: Sequence[str], *, committed: bool = False
    ) -> AbstractAsyncContextManager[GroupReader]:
        """A member of `group` (full name) for these topics; starts at the beginning where nothing was committed."""
        ...

    def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AbstractAsyncContextManager[Producer]:
        """A new idempotent producer."""
        ...

    def transaction(self, transactional_id: str) -> AbstractAsyncContextManager[Transaction]:
        """Begin: start a fresh transactional producer, which fences the older one of this id."""
        ...

    async def partitions(self, topic: str) -> int:
        """How many partitions the topic has; 0 where it does not exist."""
        ...

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        """The first offset left in each partition."""
        ...

    async def ends(self, places: Sequence[Place], *, committed: bool = False) -> dict[Place, int]:
        """The offset after the last readable record of each partition."""
        ...

    async def offsets_at(self, places: Sequence[Place], timestamp_ms: int) -> dict[Place, int]:
        """The first offset left in each partition whose message was stamped at `timestamp_ms` or later; where there is none, its end."""
        ...

    async def commit(self, group: str, offsets: Offsets) -> None:
        """Commit offsets with metadata under a group without members (how Positions are kept, R5).

        :raises BrokerError: the group has members, or a metadata is longer than MAX_METADATA.
        """
        ...

    async def committed(self, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
        """What stands committed; partitions without a commit are absent."""
        ...

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create those that do not exist; leave the others as they are."""
        ...

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """Partitions and configuration of the topics that exist."""
        ...

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Delete these topics and all that they hold."""
        ...
