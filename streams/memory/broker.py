"""The double's clients: producers, transactions, readers, groups, and the cluster that they share."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal

import anyio
import anyio.lowlevel

from schemas.errors import BrokerError, OutcomeUnknown, Superseded, TopicMismatch
from streams.broker import (
    Broker,
    GroupReader,
    Message,
    Offsets,
    Outgoing,
    Place,
    Producer,
    Reader,
    TopicSpec,
    Transaction,
    check_offsets,
    check_outgoing,
)  # fmt: skip
from streams.memory.outbox import Outbox
from streams.memory.partition import Log, Write

CommitFault = Literal["answer lost", "write lost"]
"""`answer lost`: the transaction commits, its writer never hears of it. `write lost`: it aborts, and its writer does not know either."""


class _Producer(Producer):
    def __init__(self, broker: MemoryBroker) -> None:
        self._broker = broker
        self.outbox = Outbox(broker.append)

    async def send(self, message: Outgoing) -> Awaitable[int]:
        check_outgoing(message)
        await self._broker.turn()
        self._broker.log(Place(message.topic, message.partition))
        acknowledgement = self.outbox.put(message)
        if self._broker.refuses(message):
            self.outbox.lose(Place(message.topic, message.partition))
        elif not self._broker.held:
            self.outbox.land(Place(message.topic, message.partition))
        return acknowledgement


class MemoryTransaction(Transaction):
    """`commit` is `stage` and `finish`, which tests call one by one to look at an open transaction."""

    def __init__(self, broker: MemoryBroker, name: str) -> None:
        self._broker, self._name = broker, name
        self._write, self._places = Write(), dict[Place, None]()

    async def commit(self, messages: Sequence[Outgoing]) -> list[int]:
        """See `streams.broker.Transaction`."""
        await self._broker.turn()
        offsets = self.stage(messages)
        await self._broker.turn()
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
        if any(self._broker.refuses(message) for message in messages):
            raise OutcomeUnknown(f"transaction {self._name}: a message is too large for its topic")
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


class _Reader(Reader):
    def __init__(self, broker: MemoryBroker, positions: Mapping[Place, int], committed: bool) -> None:
        self._broker, self._committed = broker, committed
        self._positions = dict(positions)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        return await self._broker.first(lambda: self.take(limit), timeout_s)

    def add(self, positions: Mapping[Place, int]) -> None:
        self._positions.update(positions)

    def remove(self, places: Sequence[Place]) -> None:
        for place in places:
            del self._positions[place]

    def position(self, place: Place) -> int:
        return self._positions[place]

    def skip_to(self, place: Place, offset: int) -> None:
        """Go on from `offset`, unless the position lies behind it."""
        if self._positions[place] < offset:
            self._positions[place] = offset

    async def end(self, place: Place) -> int:
        await self._broker.turn()
        return self._broker.log(place).end(self._committed)

    def take(self, limit: int) -> list[Message]:
        news = [(place, position) for place, position in self._positions.items() if self._broker.log(place).has_news(position)]
        found: list[Message] = []
        for place, position in news:
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
        self.members: list[MemoryMember] = []
        self.offsets: dict[Place, tuple[int, str]] = {}

    def rebalance(self, places: Callable[[str], Sequence[Place]]) -> None:
        """Deal all partitions anew."""
        for member in self.members:
            self.offsets.update({place: value for place, value in member.last_word().items() if place in member.held})
        self.generation += 1
        for member in self.members:
            member.held.clear()
        for topic in sorted({topic for member in self.members for topic in member.topics}):
            takers = [member for member in self.members if topic in member.topics]
            for index, place in enumerate(places(topic)):
                takers[index % len(takers)].held.add(place)


class MemoryMember(GroupReader):
    """A member of `group`, whose partitions it is dealt. `take` is `read` without waiting."""

    def __init__(self, broker: MemoryBroker, group: _Group, topics: Sequence[str], committed: bool) -> None:
        self._broker, self.group, self.topics = broker, group, frozenset(topics)
        self._isolated = committed
        self._reader, self._read_generation = _Reader(broker, {}, committed), 0
        self.held: set[Place] = set()
        self.last_word: Callable[[], Offsets] = dict

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        """See `GroupReader`."""
        return await self._broker.first(lambda: self.take(limit), timeout_s)

    def assignment(self) -> frozenset[Place]:
        """See `GroupReader`."""
        return frozenset(self.held)

    def generation(self) -> int:
        """See `GroupReader`."""
        return self.group.generation

    def at_revocation(self, last_word: Callable[[], Offsets]) -> None:
        """See `GroupReader`."""
        self.last_word = last_word

    async def commit(self, offsets: Offsets) -> bool:
        """See `GroupReader`."""
        await self._broker.turn()
        check_offsets(offsets)
        if not offsets.keys() <= self.held:
            return False
        self.group.offsets.update(offsets)
        return True

    async def committed(self, place: Place) -> tuple[int, str] | None:
        """See `GroupReader`."""
        await self._broker.turn()
        return self.group.offsets.get(place)

    def seek(self, place: Place, offset: int) -> None:
        """See `GroupReader`."""
        self._follow_generation()
        if place in self.held:
            self._reader.add({place: offset})

    def take(self, limit: int) -> list[Message]:
        """See `GroupReader`."""
        self._follow_generation()
        for place in self.held:
            self._reader.skip_to(place, self._broker.log(place).start)
        return self._reader.take(limit)

    def _follow_generation(self) -> None:
        if self._read_generation != self.group.generation:
            self._read_generation = self.group.generation
            self._reader = _Reader(self._broker, {place: self._committed_or_first(place) for place in sorted(self.held)}, self._isolated)

    def _committed_or_first(self, place: Place) -> int:
        return self.group.offsets.get(place, (0, ""))[0]


class MemoryBroker(Broker):
    """A cluster in memory. `clock` answers seconds; it stamps the records.

    `held`: sends wait in `outboxes` until somebody lands or loses them. `commit_faults`: what happens to the next commits, in order.
    """

    def __init__(self, clock: Callable[[], float] = anyio.current_time) -> None:
        self._clock = clock
        self._topics: dict[str, TopicSpec] = {}
        self._logs: dict[Place, Log] = {}
        self._groups: dict[str, _Group] = {}
        self._transactions: dict[str, MemoryTransaction] = {}
        self._changed = anyio.Event()
        self.held = False
        self.outboxes: list[Outbox] = []
        self.commit_faults: deque[CommitFault | None] = deque()

    @asynccontextmanager
    async def reader(self, positions: Mapping[Place, int], *, committed: bool = False) -> AsyncIterator[_Reader]:
        """A log reader; an unknown partition is a TopicMismatch."""
        for place in positions:
            self.log(place)
        yield _Reader(self, positions, committed)

    @asynccontextmanager
    async def group_reader(self, group: str, topics: Sequence[str], *, committed: bool = False) -> AsyncIterator[MemoryMember]:
        """A member; the group rebalances at once, and again when it leaves.

        :raises TopicMismatch: there is no such topic.
        """
        member = self.join(group, topics, committed=committed)
        try:
            yield member
        finally:
            self.leave(member)

    def join(self, group: str, topics: Sequence[str], *, committed: bool = False) -> MemoryMember:
        """As `group_reader`, for those who end the membership themselves."""
        for topic in topics:
            self.log(Place(topic, 0))
        state = self._groups.setdefault(group, _Group())
        member = MemoryMember(self, state, topics, committed)
        state.members.append(member)
        self._rebalance(state)
        return member

    def leave(self, member: MemoryMember) -> None:
        """End a membership, as the group does with a member that it hears nothing of. Again is harmless."""
        if member in member.group.members:
            member.group.members.remove(member)
            member.held.clear()
            self._rebalance(member.group)

    @asynccontextmanager
    async def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AsyncIterator[_Producer]:
        """A producer. Its outbox outlives it."""
        producer = _Producer(self)
        self.outboxes = [outbox for outbox in self.outboxes if outbox.waiting() or not outbox.broken]
        self.outboxes.append(producer.outbox)
        try:
            yield producer
        finally:
            producer.outbox.fail()

    @asynccontextmanager
    async def transaction(self, transactional_id: str) -> AsyncIterator[MemoryTransaction]:
        """Begin; this aborts and fences the older one of the id."""
        transaction = self.begin(transactional_id)
        try:
            await self.turn()
            yield transaction
        finally:
            transaction.abort_if_open()

    def begin(self, transactional_id: str) -> MemoryTransaction:
        """As `transaction`, for those who end it themselves."""
        if transactional_id in self._transactions:
            self._transactions[transactional_id].abort_if_open()
        transaction = self._transactions[transactional_id] = MemoryTransaction(self, transactional_id)
        return transaction

    async def partitions(self, topic: str) -> int:
        """How many partitions; 0 for an unknown topic."""
        await self.turn()
        return self._topics[topic].partitions if topic in self._topics else 0

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        """The first offset left, by partition."""
        await self.turn()
        return {place: self.log(place).start for place in places}

    async def ends(self, places: Sequence[Place], *, committed: bool = False) -> dict[Place, int]:
        """The next offset, or the last stable one, by partition."""
        await self.turn()
        return {place: self.log(place).end(committed) for place in places}

    async def offsets_at(self, places: Sequence[Place], timestamp_ms: int) -> dict[Place, int]:
        """The first offset stamped then or later, else the end."""
        await self.turn()
        return {place: self.log(place).offset_at(timestamp_ms) for place in places}

    async def commit(self, group: str, offsets: Offsets) -> None:
        """Commit for a group without members."""
        await self.turn()
        check_offsets(offsets)
        state = self._groups.setdefault(group, _Group())
        if state.members:
            raise BrokerError(f"group {group} has members: only they commit")
        state.offsets.update(offsets)

    async def committed(self, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
        """What the group committed; absent where nothing."""
        await self.turn()
        offsets = self._groups[group].offsets if group in self._groups else {}
        return {place: offsets[place] for place in places if place in offsets}

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """Create the missing ones."""
        await self.turn()
        for spec in specs:
            if spec.name not in self._topics:
                self._topics[spec.name] = spec
                self._logs.update({place: Log(place) for place in self._places(spec.name)})

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """The specs that they were created from."""
        await self.turn()
        return {name: self._topics[name] for name in names if name in self._topics}

    async def delete_topics(self, names: Sequence[str]) -> None:
        """Delete these and all that they hold."""
        await self.turn()
        for name in names:
            for place in self._places(name):
                del self._logs[place]
            self._topics.pop(name, None)

    def truncate(self, place: Place, offset: int) -> None:
        """Retention: everything before `offset` is gone."""
        self.log(place).truncate(offset)
        self.wake()

    def log(self, place: Place) -> Log:
        """The partition.

        :raises TopicMismatch: there is none.
        """
        if place not in self._logs:
            raise TopicMismatch(f"there is no partition {place.topic}/{place.partition}")
        return self._logs[place]

    def refuses(self, message: Outgoing) -> bool:
        """Whether the message is larger than its topic takes (`max.message.bytes`)."""
        limit = self._topics[message.topic].config.get("max.message.bytes")
        return limit is not None and message.size_bytes > int(limit)

    def append(self, message: Outgoing, write: Write | None = None) -> int:
        """Put a message at the end of its partition; answers its offset."""
        offset = self.log(Place(message.topic, message.partition)).append(message, int(self._clock() * 1000), write)
        self.wake()
        return offset

    def wake(self) -> None:
        """Let all who wait look again."""
        self._changed.set()
        self._changed = anyio.Event()

    async def turn(self) -> None:
        """Every call passes here once: others go first, as with a real cluster."""
        await anyio.lowlevel.checkpoint()

    async def first(self, take: Callable[[], list[Message]], timeout_s: float) -> list[Message]:
        """What `take` gives as soon as it gives anything. No await follows a take that gave: a cancelled read loses nothing."""
        await self.turn()
        with anyio.move_on_after(timeout_s):
            while not (found := take()):
                await self._changed.wait()
        return found

    def _places(self, topic: str) -> list[Place]:
        return [Place(topic, index) for index in range(self._topics[topic].partitions)] if topic in self._topics else []

    def _rebalance(self, group: _Group) -> None:
        group.rebalance(self._places)
        self.wake()
