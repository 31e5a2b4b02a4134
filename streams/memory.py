"""The double of Kafka: the whole contract of `streams.broker` in one process, for tests and simulations.

It has no threads, no randomness and no clock of its own (`clock` gives the timestamps), so a run is a function of the order in which tasks
take their turns. Held to the same suite as `streams.kafka`; what it models on purpose:
- a transaction ends in a marker that takes an offset in every partition it wrote; `committed` readers stop before the first open one;
- beginning a transaction aborts and fences the older one of its id;
- a change of a group's members is a new generation: every partition starts again at its committed offset, as with eager rebalances.

Faults are the caller's choice, never chance. While `MemoryBroker.held` is set, sends wait in `MemoryBroker.outboxes`: land them in any
order that keeps a producer's order per partition, let them land after their producer died, or lose them as a suffix. `commit_faults`
decides about commits, `truncate` is retention. Not modelled: compaction, bounds on memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import anyio.lowlevel

from schemas.errors import BrokerError, OutcomeUnknown, RetentionPassed, Superseded, TopicMismatch
from streams.broker import Message, Outgoing, Place, TopicSpec, check_outgoing

__all__ = ["CommitFault", "MemoryBroker", "MemoryTransaction", "Outbox"]

CommitFault = Literal["answer lost", "write lost"]
"""`answer lost`: the transaction commits, its writer never hears of it. `write lost`: it aborts, and its writer does not know either."""


@dataclass(eq=False, slots=True)
class _Write:
    """The state of one transaction, shared by its entries in all partitions."""

    state: Literal["open", "committed", "aborted"] = "open"


@dataclass(frozen=True, slots=True)
class _Entry:
    """What takes an offset: a message, or a marker (None) that no reader sees."""

    message: Message | None
    write: _Write | None = None

    def visible(self, committed: bool) -> bool:
        return self.message is not None and (not committed or self.write is None or self.write.state == "committed")


@dataclass(slots=True)
class _Log:
    """One partition. `start` is the first offset left."""

    place: Place
    start: int = 0
    entries: list[_Entry] = field(default_factory=list)
    open_since: dict[_Write, int] = field(default_factory=dict)

    def end(self, committed: bool) -> int:
        last = self.start + len(self.entries)
        return min(self.open_since.values(), default=last) if committed else last

    def append(self, sent: Outgoing, timestamp_ms: int, write: _Write | None = None) -> int:
        offset = self.end(committed=False)
        message = Message(sent.topic, sent.partition, offset, timestamp_ms, sent.key, sent.value, sent.headers)
        self.entries.append(_Entry(message, write))
        if write is not None:
            self.open_since.setdefault(write, offset)
        return offset

    def mark(self, write: _Write) -> None:
        if self.open_since.pop(write, None) is not None:
            self.entries.append(_Entry(None))

    def truncate(self, offset: int) -> None:
        dropped = min(max(offset - self.start, 0), len(self.entries))
        del self.entries[:dropped]
        self.start += dropped

    def read(self, position: int, limit: int, committed: bool) -> tuple[list[Message], int]:
        """Up to `limit` messages from `position`, and the position after them."""
        end, found = self.end(committed), list[Message]()
        while position < end and len(found) < limit:
            entry = self.entries[position - self.start]
            if entry.message is not None and entry.visible(committed):
                found.append(entry.message)
            position += 1
        return found, position

    def check_range(self, position: int) -> None:
        if position < self.start:
            raise RetentionPassed(f"{self.place.topic}/{self.place.partition}: position {position}, the first record left is {self.start}")
        if position > self.end(committed=False):
            raise TopicMismatch(f"{self.place.topic}/{self.place.partition}: position {position} lies beyond the end")


class _Acknowledgement:
    """An offset to come. Awaiting it twice, or cancelling an await, changes nothing."""

    def __init__(self) -> None:
        self._settled = anyio.Event()
        self._offset: int | None = None

    def settle(self, offset: int | None) -> None:
        """The answer: an offset, or None for an unknown outcome."""
        self._offset = offset
        self._settled.set()

    def __await__(self) -> Generator[Any, None, int]:
        return self._wait().__await__()

    async def _wait(self) -> int:
        await self._settled.wait()
        if self._offset is None:
            raise OutcomeUnknown("the producer broke before this write was acknowledged")
        return self._offset


class Outbox:
    """What one producer sent and the log has not taken yet, in order per partition. It outlives its producer."""

    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self._waiting: dict[Place, deque[tuple[Outgoing, _Acknowledgement]]] = {}
        self._unsettled: dict[_Acknowledgement, None] = {}
        self.broken = False

    def waiting(self) -> dict[Place, int]:
        """How many messages wait for each partition."""
        return {place: len(queue) for place, queue in self._waiting.items() if queue}

    def put(self, message: Outgoing) -> _Acknowledgement:
        """Queue a message.

        :raises OutcomeUnknown: the producer is broken.
        """
        if self.broken:
            raise OutcomeUnknown("this producer is broken; make another one")
        acknowledgement = _Acknowledgement()
        self._unsettled[acknowledgement] = None
        self._waiting.setdefault(Place(message.topic, message.partition), deque()).append((message, acknowledgement))
        return acknowledgement

    def land(self, place: Place, *, acknowledge: bool = True) -> int:
        """The log takes the oldest message of a partition; answers its offset. A broken producer hears nothing of it."""
        message, acknowledgement = self._waiting[place].popleft()
        offset = self._broker.append(message)
        if acknowledge and not self.broken:
            del self._unsettled[acknowledgement]
            acknowledgement.settle(offset)
        return offset

    def lose(self, place: Place, *, keep: int = 0) -> None:
        """Everything of a partition after the first `keep` is lost, which breaks the producer."""
        self.fail()
        queue = self._waiting[place]
        while len(queue) > keep:
            queue.pop()

    def fail(self) -> None:
        """The producer breaks or its process dies: nothing more is acknowledged. What waits may still land."""
        self.broken = True
        for acknowledgement in self._unsettled:
            acknowledgement.settle(None)
        self._unsettled.clear()


class _Producer:
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.outbox = Outbox(broker)

    async def send(self, message: Outgoing) -> Awaitable[int]:
        check_outgoing(message)
        await anyio.lowlevel.checkpoint()
        self._broker.log(Place(message.topic, message.partition))
        acknowledgement = self.outbox.put(message)
        if not self._broker.held:
            self.outbox.land(Place(message.topic, message.partition))
        return acknowledgement


class MemoryTransaction:
    """`commit` is `stage` and `finish`, which tests call one by one to look at an open transaction."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker, self._name = broker, name
        self._write, self._places = _Write(), dict[Place, None]()

    async def commit(self, messages: Sequence[Outgoing]) -> list[int]:
        """See `streams.broker.Transaction`."""
        await anyio.lowlevel.checkpoint()
        offsets = self.stage(messages)
        await anyio.lowlevel.checkpoint()
        fault = self._broker.commit_faults.popleft() if self._broker.commit_faults else None
        self.finish("aborted" if fault == "write lost" else "committed")
        if fault is not None:
            raise OutcomeUnknown(f"transaction {self._name}: {fault}")
        return offsets

    def stage(self, messages: Sequence[Outgoing]) -> list[int]:
        """Write without committing.

        :raises Superseded: a younger transaction of this id began, or this one has ended.
        """
        for message in messages:
            check_outgoing(message)
        self._check_open()
        self._places.update((Place(message.topic, message.partition), None) for message in messages)
        return [self._broker.append(message, self._write) for message in messages]

    def finish(self, state: Literal["committed", "aborted"]) -> None:
        """Write the markers.

        :raises Superseded: as `stage`.
        """
        self._check_open()
        self._write.state = state
        for place in self._places:
            self._broker.log(place).mark(self._write)
        self._broker.wake()

    def abort_if_open(self) -> None:
        """What fencing does, and leaving the context without `commit`."""
        if self._write.state == "open":
            self.finish("aborted")

    def _check_open(self) -> None:
        if self._write.state != "open":
            raise Superseded(f"transaction {self._name} was {self._write.state}, or a younger one began")


class _Reader:
    def __init__(self, broker: MemoryBroker, positions: Mapping[Place, int], committed: bool) -> None:
        self._broker, self._committed = broker, committed
        self._positions = dict(positions)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        return await self._broker.first(lambda: self._take(limit), timeout_s)

    def add(self, positions: Mapping[Place, int]) -> None:
        self._positions.update(positions)

    def remove(self, places: Sequence[Place]) -> None:
        for place in places:
            del self._positions[place]

    def position(self, place: Place) -> int:
        return self._positions[place]

    async def end(self, place: Place) -> int:
        await anyio.lowlevel.checkpoint()
        return self._broker.log(place).end(self._committed)

    def _take(self, limit: int) -> list[Message]:
        for place, position in self._positions.items():
            self._broker.log(place).check_range(position)
        found: list[Message] = []
        for place, position in list(self._positions.items()):
            if len(found) == limit:
                break
            messages, after = self._broker.log(place).read(position, limit - len(found), self._committed)
            del self._positions[place]  # served: to the back, so that a full partition does not starve the others
            self._positions[place] = after
            found += messages
        return found


class _Group:
    """Members in order of joining, and what is committed. Partitions are dealt round robin."""

    def __init__(self) -> None:
        self.generation = 0
        self.members: list[_GroupReader] = []
        self.offsets: dict[Place, tuple[int, str]] = {}

    def rebalance(self, places: Callable[[str], Sequence[Place]]) -> None:
        """Deal all partitions anew."""
        self.generation += 1
        for member in self.members:
            member.held.clear()
        for topic in sorted({topic for member in self.members for topic in member.topics}):
            takers = [member for member in self.members if topic in member.topics]
            for index, place in enumerate(places(topic)):
                takers[index % len(takers)].held.add(place)


class _GroupReader:
    def __init__(self, broker: MemoryBroker, group: _Group, topics: Sequence[str], committed: bool) -> None:
        self._broker, self._group, self.topics = broker, group, frozenset(topics)
        self._reader, self._read_generation = _Reader(broker, {}, committed), 0
        self.held: set[Place] = set()

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        return await self._broker.first(lambda: self._take(limit), timeout_s)

    def assignment(self) -> frozenset[Place]:
        return frozenset(self.held)

    def generation(self) -> int:
        return self._group.generation

    async def commit(self, offsets: Mapping[Place, tuple[int, str]]) -> bool:
        await anyio.lowlevel.checkpoint()
        if not offsets.keys() <= self.held:
            return False
        self._group.offsets.update(offsets)
        return True

    async def committed(self, place: Place) -> tuple[int, str] | None:
        await anyio.lowlevel.checkpoint()
        return self._group.offsets.get(place)

    def seek(self, place: Place, offset: int) -> None:
        self._follow_generation()
        if place in self.held:
            self._reader.add({place: offset})

    def _take(self, limit: int) -> list[Message]:
        self._follow_generation()
        self._reader.add({place: self._in_range(place) for place in self.held})
        return self._reader._take(limit)

    def _follow_generation(self) -> None:
        if self._read_generation != self._group.generation:
            self._read_generation = self._group.generation
            self._reader = _Reader(self._broker, {place: self._committed_or_first(place) for place in sorted(self.held)}, self._reader._committed)

    def _committed_or_first(self, place: Place) -> int:
        return self._group.offsets.get(place, (0, ""))[0]

    def _in_range(self, place: Place) -> int:
        return max(self._reader.position(place), self._broker.log(place).start)


class MemoryBroker:
    """A cluster in memory. `clock` answers seconds; it stamps the records.

    `held`: sends wait in `outboxes` until somebody lands or loses them. `commit_faults`: what happens to the next commits, in order.
    """

    def __init__(self, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._topics: dict[str, TopicSpec] = {}
        self._logs: dict[Place, _Log] = {}
        self._groups: dict[str, _Group] = {}
        self._transactions: dict[str, MemoryTransaction] = {}
        self._changed = anyio.Event()
        self.held = False
        self.outboxes: list[Outbox] = []
        self.commit_faults: deque[CommitFault | None] = deque()

    @asynccontextmanager
    async def reader(self, positions: Mapping[Place, int], *, committed: bool = False) -> AsyncIterator[_Reader]:
        """See `streams.broker.Broker`; so for all that follow."""
        for place in positions:
            self.log(place)
        yield _Reader(self, positions, committed)

    @asynccontextmanager
    async def group_reader(self, group: str, topics: Sequence[str], *, committed: bool = False) -> AsyncIterator[_GroupReader]:
        state = self._groups.setdefault(group, _Group())
        member = _GroupReader(self, state, topics, committed)
        state.members.append(member)
        self._rebalance(state)
        try:
            yield member
        finally:
            state.members.remove(member)
            member.held.clear()
            self._rebalance(state)

    @asynccontextmanager
    async def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AsyncIterator[_Producer]:
        producer = _Producer(self)
        self.outboxes = [outbox for outbox in self.outboxes if outbox.waiting() or not outbox.broken]
        self.outboxes.append(producer.outbox)
        try:
            yield producer
        finally:
            producer.outbox.fail()

    @asynccontextmanager
    async def transaction(self, transactional_id: str) -> AsyncIterator[MemoryTransaction]:
        if transactional_id in self._transactions:
            self._transactions[transactional_id].abort_if_open()
        transaction = self._transactions[transactional_id] = MemoryTransaction(self, transactional_id)
        try:
            await anyio.lowlevel.checkpoint()
            yield transaction
        finally:
            transaction.abort_if_open()

    async def partitions(self, topic: str) -> int:
        await anyio.lowlevel.checkpoint()
        return self._topics[topic].partitions if topic in self._topics else 0

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        await anyio.lowlevel.checkpoint()
        return {place: self.log(place).start for place in places}

    async def ends(self, places: Sequence[Place], *, committed: bool = False) -> dict[Place, int]:
        await anyio.lowlevel.checkpoint()
        return {place: self.log(place).end(committed) for place in places}

    async def commit(self, group: str, offsets: Mapping[Place, tuple[int, str]]) -> None:
        await anyio.lowlevel.checkpoint()
        state = self._groups.setdefault(group, _Group())
        if state.members:
            raise BrokerError(f"group {group} has members: only they commit")
        state.offsets.update(offsets)

    async def committed(self, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
        await anyio.lowlevel.checkpoint()
        offsets = self._groups[group].offsets if group in self._groups else {}
        return {place: offsets[place] for place in places if place in offsets}

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        await anyio.lowlevel.checkpoint()
        for spec in specs:
            if spec.name not in self._topics:
                self._topics[spec.name] = spec
                self._logs.update({place: _Log(place) for place in self._places(spec.name)})
        self._rebalance_all({spec.name for spec in specs})

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        await anyio.lowlevel.checkpoint()
        return {name: self._topics[name] for name in names if name in self._topics}

    async def delete_topics(self, names: Sequence[str]) -> None:
        await anyio.lowlevel.checkpoint()
        for name in names:
            for place in self._places(name):
                del self._logs[place]
            self._topics.pop(name, None)
        self._rebalance_all(set(names))

    def truncate(self, place: Place, offset: int) -> None:
        """Retention: everything before `offset` is gone."""
        self.log(place).truncate(offset)
        self.wake()

    def log(self, place: Place) -> _Log:
        """The partition.

        :raises TopicMismatch: there is none.
        """
        if place not in self._logs:
            raise TopicMismatch(f"there is no partition {place.topic}/{place.partition}")
        return self._logs[place]

    def append(self, message: Outgoing, write: _Write | None = None) -> int:
        """Put a message at the end of its partition; answers its offset."""
        offset = self.log(Place(message.topic, message.partition)).append(message, int(self._clock() * 1000), write)
        self.wake()
        return offset

    def wake(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def first(self, take: Callable[[], list[Message]], timeout_s: float) -> list[Message]:
        """What `take` gives as soon as it gives anything. No await follows a take that gave: a cancelled read loses nothing."""
        await anyio.lowlevel.checkpoint()
        with anyio.move_on_after(timeout_s):
            while not (found := take()):
                await self._changed.wait()
        return found

    def _places(self, topic: str) -> list[Place]:
        return [Place(topic, index) for index in range(self._topics[topic].partitions)] if topic in self._topics else []

    def _rebalance(self, group: _Group) -> None:
        group.rebalance(self._places)
        self.wake()

    def _rebalance_all(self, topics: set[str]) -> None:
        for group in self._groups.values():
            if any(member.topics & topics for member in group.members):
                self._rebalance(group)
