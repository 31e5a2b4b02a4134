"""The log of one namespace, in records: where every role reads and writes.

Three ways to read: `follow` (a log reader from positions), `join` (a consumer group), `streams.table` (the last record of each key, live).
Two ways to write: `writer` and `streams.cas`. Bytes that cannot be used go to the dead letters with the reason, and the reader goes on;
where the topic is strict, an unknown type or major stops it (R4). A blob that is gone stops it there, too, and in topics that are written
by cas: their only writer builds upon what it read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import anyio

from schemas.deadletter import DeadLetter
from schemas.errors import BrokerUnavailable, CorruptRecord, LogError, MissingBlob, UnknownRecord
from schemas.record import Record
from schemas.topics import DEADLETTER, Topic
from streams.blobs import Blobs, has_reference
from streams.broker import Broker, GroupReader, Message, Outgoing, Place, Reader
from streams.codec import Entry, decode, encode
from streams.inbox import Inbox
from streams.writer import Receipt, Writer, WriterOptions, open_writer

T = TypeVar("T")

BURY_S = 20.0
"""How long a dead letter may take before the reader gives up: going on without it would lose the bytes."""


@dataclass(frozen=True, slots=True)
class Log:
    """A namespace of a broker, seen by one process. `role` names it in the dead letters. `blobs` holds what no message can."""

    broker: Broker
    namespace: str
    role: str
    blobs: Blobs = field(default_factory=Blobs)

    def name(self, topic: Topic) -> str:
        """The full name of a topic."""
        return self.namespace + topic.name

    def group(self, name: str) -> str:
        """The full name of a consumer group or transactional id."""
        return self.namespace + name

    def place(self, topic: Topic, partition: int) -> Place:
        """A partition of a topic."""
        return Place(self.name(topic), partition)

    async def places(self, topic: Topic) -> list[Place]:
        """All partitions of a topic."""
        return [self.place(topic, number) for number in range(await self.broker.partitions(self.name(topic)))]

    @asynccontextmanager
    async def follow(self, topic: Topic, offsets: Mapping[int, int]) -> AsyncIterator[LogReader]:
        """Read partitions of one topic from these offsets (partition → offset)."""
        positions = {self.place(topic, partition): offset for partition, offset in offsets.items()}
        async with self.broker.reader(positions, committed=topic.committed) as reader:
            yield LogReader(self, topic, reader)

    @asynccontextmanager
    async def follow_all(self, topic: Topic) -> AsyncIterator[LogReader]:
        """Read a whole topic from the first record left."""
        starts = await self.broker.starts(await self.places(topic))
        async with self.follow(topic, {place.partition: offset for place, offset in starts.items()}) as reader:
            yield reader

    @asynccontextmanager
    async def join(self, topic: Topic, group: str) -> AsyncIterator[Member]:
        """Share a topic with the other members of a consumer group."""
        async with self.broker.group_reader(self.group(group), [self.name(topic)], committed=topic.committed) as reader:
            yield Member(self, topic, reader)

    @asynccontextmanager
    async def writer(self, options: WriterOptions | None = None) -> AsyncIterator[RecordWriter]:
        """A writer of records."""
        async with open_writer(self.broker, options, self.blobs) as writer:
            yield RecordWriter(self, writer)

    async def decode(self, topic: Topic, messages: Iterable[Message]) -> list[Entry[Record]]:
        """The records in these messages, payloads of the blob store included; what cannot be used is buried.

        :raises UnknownRecord: in a strict topic.
        :raises MissingBlob: in a strict topic, or one that is written by cas.
        :raises BlobStoreUnavailable: a payload could not be fetched.
        """
        entries = []
        for message in messages:
            try:
                entries.append(decode(topic, await self.blobs.check_out(message) if has_reference(message) else message))
            except (CorruptRecord, UnknownRecord, MissingBlob) as error:
                if _stops(topic, error):
                    raise
                await self.bury(topic, message, str(error))
        return entries

    async def outgoing(self, topic: Topic, partition: int, record: Record, *, nonce: bytes | None = None) -> Outgoing:
        """A record as the message to send, its payload in the blob store where it is large.

        :raises BrokerError: it is large, and there is no blob store.
        :raises BlobStoreUnavailable: it is large, and the blob store does not answer.
        """
        return await self.blobs.check_in(encode(self.name(topic), partition, record, nonce=nonce))

    async def bury(self, topic: Topic, message: Message, reason: str) -> None:
        """Write the bytes to the dead letters and wait until they stand there.

        :raises BrokerUnavailable: they could not be written.
        """
        letter = DeadLetter(
            topic=topic.name, partition=message.partition, offset=message.offset, reason=reason, reader=self.role,
            original_key=message.key or b"", original_value=message.value or b"", original_headers=dict(message.headers),
        )
        with anyio.move_on_after(BURY_S):
            async with open_writer(self.broker, blobs=self.blobs) as writer:
                await (await writer.send(encode(self.name(DEADLETTER), 0, letter)))
                return
        raise BrokerUnavailable(f"could not bury {topic.name}[{message.partition}]@{message.offset}")

    async def bury_record(self, topic: Topic, entry: Entry[Record], reason: str) -> None:
        """As `bury`, for a record that can be read and that nobody can work on (Poison).

        :raises BrokerUnavailable: it could not be written.
        """
        again = encode(topic.name, entry.partition, entry.record)
        message = Message(topic.name, entry.partition, entry.offset, entry.timestamp_ms, again.key, again.value, again.headers)
        await self.bury(topic, message, reason)


def _stops(topic: Topic, error: LogError) -> bool:
    if isinstance(error, MissingBlob):
        return topic.strict or topic.committed
    return topic.strict and isinstance(error, UnknownRecord)


@dataclass(frozen=True, slots=True)
class LogReader:
    """Records of one topic by position."""

    log: Log
    topic: Topic
    reader: Reader
    inbox: Inbox = field(default_factory=Inbox)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Entry[Record]]:
        """The next records, or none after `timeout_s`. Cancelling loses nothing before the records are returned."""
        if not self.inbox:
            self.inbox.put(await self.reader.read(timeout_s=timeout_s, limit=limit))
        return await _handed_on(self.log, self.topic, self.inbox, limit)

    def add(self, partition: int, offset: int) -> None:
        """Read one more partition, or one from another offset."""
        self.inbox.forget(partition)
        self.reader.add({self.log.place(self.topic, partition): offset})

    def remove(self, partition: int) -> None:
        """Read a partition no more."""
        self.inbox.forget(partition)
        self.reader.remove([self.log.place(self.topic, partition)])

    def position(self, partition: int) -> int:
        """The next offset of a partition that `read` will return, or look at."""
        waiting = self.inbox.first(partition)
        return waiting if waiting is not None else self.reader.position(self.log.place(self.topic, partition))

    async def end(self, partition: int) -> int:
        """The offset after the last readable record now."""
        return await self.reader.end(self.log.place(self.topic, partition))

    async def read_to_end(
        self, partitions: Sequence[int], *, timeout_s: float = 30.0, into: list[Entry[Record]] | None = None
    ) -> list[Entry[Record]]:
        """All records up to the ends as they are now; appended to `into`, where given, so that a failure loses none that were read.

        :raises BrokerUnavailable: the end did not come within `timeout_s` without any record arriving.
        """
        ends = {partition: await self.end(partition) for partition in partitions}
        entries = [] if into is None else into
        deadline = anyio.current_time() + timeout_s
        while any(self.position(partition) < end for partition, end in ends.items()):
            if got := await self.read(timeout_s=0.5):
                deadline = anyio.current_time() + timeout_s
            elif anyio.current_time() > deadline:
                raise BrokerUnavailable(f"the end of {self.topic.name} did not come within {timeout_s:.0f} s")
            entries += got
        return entries


@dataclass(frozen=True, slots=True)
class Member:
    """Records of one topic as a member of a consumer group."""

    log: Log
    topic: Topic
    reader: GroupReader
    inbox: Inbox = field(default_factory=Inbox)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Entry[Record]]:
        """The next records of the partitions held now. Cancelling loses nothing before the records are returned."""
        self.inbox.begin(self.reader.generation())
        if not self.inbox:
            self.inbox.put(await self.reader.read(timeout_s=timeout_s, limit=limit))
        return await _handed_on(self.log, self.topic, self.inbox, limit)

    def partitions(self) -> frozenset[int]:
        """The partitions held now."""
        return frozenset(place.partition for place in self.reader.assignment())

    def generation(self) -> int:
        """Grows whenever the partitions change."""
        return self.reader.generation()

    async def commit(self, offsets: Mapping[int, int] | Mapping[int, tuple[int, str]]) -> bool:
        """Commit next offsets (with metadata, if given). False: no longer the holder."""
        pairs = {
            self.log.place(self.topic, partition): value if isinstance(value, tuple) else (value, "")
            for partition, value in offsets.items()
        }
        return await self.reader.commit(pairs)

    def at_revocation(self, last_word: Callable[[], Mapping[int, tuple[int, str]]]) -> None:
        """What is to be committed when the partitions are dealt anew while this process lives (`GroupReader.at_revocation`)."""
        self.reader.at_revocation(lambda: {self.log.place(self.topic, number): value for number, value in last_word().items()})

    async def committed(self, partition: int) -> tuple[int, str] | None:
        """What the group committed last."""
        return await self.reader.committed(self.log.place(self.topic, partition))

    def seek(self, partition: int, offset: int) -> None:
        """Continue a held partition from another offset."""
        self.inbox.forget(partition)
        self.reader.seek(self.log.place(self.topic, partition), offset)


async def _handed_on(log: Log, topic: Topic, inbox: Inbox, limit: int) -> list[Entry[Record]]:
    messages = inbox.next(limit)
    entries = await log.decode(topic, messages)
    return entries if inbox.passed(messages) else []


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """Writes records; resends by itself (`streams.writer`)."""

    log: Log
    writer: Writer

    async def send(self, topic: Topic, partition: int, record: Record) -> Receipt:
        """Hand over one record; waits for room, not for the log. Await the receipt for the offset."""
        return await self.writer.send(encode(self.log.name(topic), partition, record))

    async def flush(self) -> None:
        """Wait until the log holds all that was sent."""
        await self.writer.flush()
