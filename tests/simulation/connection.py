"""One process's connection to the cluster: `streams.broker.Broker` with everything that can go wrong between the two.

Invariants: a connection that was cut neither writes nor answers any more, whatever its process still does, but what it had sent may land;
a frozen one does neither until it thaws; messages of one producer land in their order in each partition, each at most once; of a producer
that broke only a suffix is lost. A fault is told to the process at the moment at which it strikes, and not when it is asked for.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from schemas.errors import BrokerUnavailable, OutcomeUnknown, Superseded
from schemas.topics import NODES
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
    check_outgoing,
)  # fmt: skip
from streams.memory import MemoryMember, MemoryTransaction, Outbox
from tests.simulation.cluster import Cluster

SESSION_S = 3.0
"""How long a consumer group waits for a member that says nothing."""
TRANSACTION_S = 4.0
"""How long a transaction stays open whose writer is gone."""
SLOW_SHARE = 0.15
SLOW_S = 0.02
"""This share of all calls and of all landings takes up to so long."""
YIELD_SHARE = 0.4
"""This share of all calls lets others go first; the rest is done at once."""
READ_YIELD_SHARE = 0.1
"""As YIELD_SHARE, for reads."""

COMMIT = "commit"
COMMITTED = "committed"
OFFSETS = "offsets"
"""What a trap may wait for besides the types of records that are sent."""


@dataclass
class Trap:
    """Something that goes wrong with the next call that is `about` a type of record (COMMIT, OFFSETS; empty: any), after `calls` others.

    `kind` is `kill`, `freeze` (for `for_s` seconds), or one of the faults of a send, of a commit, or of a commit of offsets. `is_after`:
    when the call has had its effect (only for records).
    """

    kind: str
    about: str
    calls: int
    for_s: float
    is_after: bool = False


class ProcessDied(BaseException):
    """Thrown at what still runs of a dead process, so that it goes away: no product code catches it."""


class Owner(Protocol):
    """The process whose connection it is."""

    def kill(self) -> None:
        """It dies."""
        ...

    def freeze(self) -> None:
        """It is frozen."""
        ...

    def thaw(self) -> None:
        """It goes on."""
        ...

    def struck(self, kind: str) -> None:
        """A fault of this kind struck."""
        ...


class Connection(Broker):
    """See the module."""

    def __init__(self, cluster: Cluster, chance: random.Random, owner: Owner) -> None:
        self.cluster, self.chance, self._owner = cluster, chance, owner
        self.is_cut = False
        self.traps: list[Trap] = []
        self.silent_until_s = 0.0
        """What the process says of itself in `nodes` stays on its way until then."""
        self.slow_until_s = 0.0
        """Whatever it sends does."""
        self.frontier: dict[Place, int] | None = None
        """What readers see ends here."""
        self.is_frozen = self.is_deaf = False
        self._running, self._hears = asyncio.Event(), asyncio.Event()
        self._running.set()
        self._hears.set()
        self._members: list[_Member] = []
        self._outboxes: list[Outbox] = []

    # What is done to it

    def cut(self) -> None:
        """The process is dead. Of what it had sent and nobody acknowledged some may be lost."""
        self.is_cut = True
        self._run_on()  # whoever waits here learns that it is dead
        self._later(SESSION_S, self._evict)
        for outbox in self._outboxes:
            for place in outbox.waiting():
                if self.chance.random() < 0.5:
                    outbox.lose(place)

    def freeze(self) -> None:
        """The process stops between two calls."""
        self.is_frozen = True
        self._running.clear()
        self.frontier = self._ends()
        self._later(SESSION_S, self._evict_if_frozen)

    def thaw(self) -> None:
        """It goes on, with what it had read."""
        if not self.is_cut:
            self._run_on()
            self._later(self.chance.uniform(0.0, 0.3), self.see_all)

    def see_no_further(self, seconds: float) -> None:
        """Its readers see nothing new for a while: they are served by a replica that lags."""
        self.frontier = self._ends()
        self._later(seconds, self.see_all)

    def see_all(self) -> None:
        """The lag is over."""
        self.frontier = None
        self.cluster.wake()

    def hold_reads(self, seconds: float) -> None:
        """No read is answered for a while."""
        self.is_deaf = True
        self._hears.clear()
        self._later(seconds, self._hear_again)

    def calm_down(self) -> None:
        """Nothing goes wrong any more."""
        self.frontier, self.silent_until_s, self.slow_until_s = None, 0.0, 0.0
        self.traps.clear()
        self._hear_again()

    def spring(self, about: str, *, is_after: bool = False) -> str:
        """Let what waits for such a call happen; answers the kind of a fault that the caller is to make happen, empty if none is."""
        for trap in self.traps:
            if trap.about in ("", about) and trap.is_after == is_after:
                trap.calls -= 1
                if trap.calls < 0:
                    self.traps.remove(trap)
                    return self._strike(trap)
        return ""

    def _strike(self, trap: Trap) -> str:
        if trap.kind == "kill":
            self._owner.kill()
            raise ProcessDied
        if trap.kind == "freeze":
            self._owner.freeze()
            self._later(trap.for_s, self._owner.thaw)
            return ""
        self._owner.struck(trap.kind)
        return trap.kind

    @property
    def can_speak(self) -> bool:
        """The process is neither dead nor frozen."""
        return self._running.is_set() and not self.is_cut

    # What the process sees of it

    async def call(self, about: str = "", yields: float = YIELD_SHARE) -> str:
        """Every call passes here: it takes a while, waits for a frozen process or a broker that is away, and may be the last one.

        Answers the kind of fault that it is to suffer, empty for none.
        """
        luck = self.chance.random()
        if luck < yields:
            await asyncio.sleep(luck / SLOW_SHARE * SLOW_S if luck < SLOW_SHARE else 0)
        fault = self.spring(about) if self.traps else ""
        while self.is_frozen or self.cluster.is_away:
            await self._running.wait()
            await self.cluster.back.wait()
        if self.is_cut:
            raise ProcessDied
        return fault

    async def read_call(self) -> None:
        """As `call`, for a read: that its answer comes later is `Cluster.news`' business."""
        await self.call(yields=READ_YIELD_SHARE)
        await self.ready()

    async def ready(self) -> None:
        """Wait until a read may be answered."""
        while self.is_deaf or self.is_frozen or self.cluster.is_away:
            await self._hears.wait()
            await self._running.wait()
            await self.cluster.back.wait()
        if self.is_cut:
            raise ProcessDied

    @asynccontextmanager
    async def reader(self, positions: Mapping[Place, int], *, committed: bool = False) -> AsyncIterator[Reader]:
        """See `Broker`."""
        await self.call()
        yield _Reader(self, positions, committed)

    @asynccontextmanager
    async def group_reader(self, group: str, topics: Sequence[str], *, committed: bool = False) -> AsyncIterator[GroupReader]:
        """See `Broker`. A process that dies stays a member until the group misses it."""
        await self.call()
        member = _Member(self, group, topics, committed)
        self._members.append(member)
        try:
            yield member
        finally:
            if not self.is_cut:
                self._members.remove(member)
                member.leave()

    @asynccontextmanager
    async def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AsyncIterator[Producer]:
        """See `Broker`. What it sent may land after it is gone."""
        await self.call()
        producer = _Producer(self)
        self._outboxes.append(producer.outbox)
        try:
            yield producer
        finally:
            producer.outbox.fail()
            self._outboxes.remove(producer.outbox)

    @asynccontextmanager
    async def transaction(self, transactional_id: str) -> AsyncIterator[Transaction]:
        """See `Broker`. That of a dead process stays open for a while."""
        await self.call()
        inner = self.cluster.begin(transactional_id)
        transaction = _Transaction(self, inner)
        try:
            await self.call()
            yield transaction
        finally:
            if self.is_cut:
                self._later(TRANSACTION_S, inner.abort_if_open)
            elif not transaction.is_under_way:
                inner.abort_if_open()

    async def partitions(self, topic: str) -> int:
        """See `Broker`."""
        await self.call()
        return await self.cluster.partitions(topic)

    async def starts(self, places: Sequence[Place]) -> dict[Place, int]:
        """See `Broker`."""
        await self.call()
        return await self.cluster.starts(places)

    async def ends(self, places: Sequence[Place], *, committed: bool = False) -> dict[Place, int]:
        """See `Broker`."""
        await self.call()
        return await self.cluster.ends(places, committed=committed)

    async def offsets_at(self, places: Sequence[Place], timestamp_ms: int) -> dict[Place, int]:
        """See `Broker`."""
        await self.call()
        return await self.cluster.offsets_at(places, timestamp_ms)

    async def commit(self, group: str, offsets: Offsets) -> None:
        """See `Broker`."""
        fault = await self.call(OFFSETS)
        await self.cluster.commit(group, offsets)
        if fault:
            raise BrokerUnavailable("the answer to a commit of offsets never came")

    async def committed(self, group: str, places: Sequence[Place]) -> dict[Place, tuple[int, str]]:
        """See `Broker`."""
        await self.call()
        return await self.cluster.committed(group, places)

    async def create_topics(self, specs: Sequence[TopicSpec]) -> None:
        """See `Broker`."""
        await self.call()
        await self.cluster.create_topics(specs)

    async def describe_topics(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """See `Broker`."""
        await self.call()
        return await self.cluster.describe_topics(names)

    async def delete_topics(self, names: Sequence[str]) -> None:
        """See `Broker`."""
        await self.call()
        await self.cluster.delete_topics(names)

    def delay_s(self, place: Place) -> float:
        """How long what is on its way to a partition cannot land."""
        if self.cluster.is_away:
            return 0.1
        until_s = max(self.slow_until_s, self.silent_until_s) if place.topic.endswith(NODES.name) else self.slow_until_s
        return max(0.0, until_s - self.cluster.now_s())

    def later(self, callback: Callable[[], None], *, most_s: float, least_s: float = 0.0) -> None:
        """Do something after a random while."""
        self._later(self.chance.uniform(least_s, most_s), callback)

    def _later(self, seconds: float, callback: Callable[[], None]) -> None:
        self.cluster.after(seconds, callback)

    def _ends(self) -> dict[Place, int]:
        return {place: self.cluster.log(place).end(committed=False) for place in self.cluster.places}

    def _evict(self) -> None:
        for member in self._members:
            member.leave()

    def _evict_if_frozen(self) -> None:
        if self.is_frozen:
            self._evict()

    def _run_on(self) -> None:
        self.is_frozen = False
        self._running.set()

    def _hear_again(self) -> None:
        self.is_deaf = False
        self._hears.set()


class _Reader(Reader):
    def __init__(self, connection: Connection, positions: Mapping[Place, int], committed: bool) -> None:
        self._connection, self._committed = connection, committed
        self._positions = dict(positions)
        for place in positions:
            connection.cluster.log(place)

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        connection = self._connection
        await connection.read_call()
        deadline_s = connection.cluster.now_s() + timeout_s
        while not (found := self._take(limit)) and await connection.cluster.news(self._topics(), deadline_s):
            await connection.ready()
        return found

    def add(self, positions: Mapping[Place, int]) -> None:
        self._positions.update(positions)

    def remove(self, places: Sequence[Place]) -> None:
        for place in places:
            del self._positions[place]

    def position(self, place: Place) -> int:
        return self._positions[place]

    async def end(self, place: Place) -> int:
        await self._connection.call()
        return self._connection.cluster.log(place).end(self._committed)

    def _topics(self) -> set[str]:
        return {place.topic for place in self._positions}

    def _take(self, limit: int) -> list[Message]:
        """As the double's own reader, but nothing at or beyond the frontier."""
        cluster, frontier = self._connection.cluster, self._connection.frontier
        found: list[Message] = []
        for place, position in list(self._positions.items()):
            log = cluster.log(place)
            if not log.has_news(position) or len(found) == limit:
                continue
            messages, after = log.read(position, limit - len(found), self._committed)
            if frontier is not None:
                after = max(position, min(after, frontier.get(place, 0)))
                messages = [message for message in messages if message.offset < after]
            del self._positions[place]
            self._positions[place] = after
            found += messages
        return found


class _Member(GroupReader):
    """A member that the group may forget; it joins again with its next read."""

    def __init__(self, connection: Connection, group: str, topics: Sequence[str], committed: bool) -> None:
        self._connection = connection
        self._arguments = (group, topics, committed)
        self._last_word: Callable[[], Offsets] = dict
        self._inner = self._join()

    async def read(self, *, timeout_s: float, limit: int = 1000) -> list[Message]:
        connection = self._connection
        await connection.read_call()
        deadline_s = connection.cluster.now_s() + timeout_s
        while not (found := self._take(limit)) and await connection.cluster.news(self._inner.topics, deadline_s):
            await connection.ready()
        return found

    def assignment(self) -> frozenset[Place]:
        return self._inner.assignment()

    def generation(self) -> int:
        return self._inner.generation()

    async def commit(self, offsets: Offsets) -> bool:
        await self._connection.call()
        return await self._inner.commit(offsets)

    def at_revocation(self, last_word: Callable[[], Offsets]) -> None:
        self._last_word = last_word

    async def committed(self, place: Place) -> tuple[int, str] | None:
        await self._connection.call()
        return await self._inner.committed(place)

    def seek(self, place: Place, offset: int) -> None:
        self._inner.seek(place, offset)

    def leave(self) -> None:
        self._connection.cluster.leave(self._inner)

    def _take(self, limit: int) -> list[Message]:
        if self._inner not in self._inner.group.members:
            self._inner = self._join()
        found, frontier = self._inner.take(limit), self._connection.frontier
        if frontier is None:
            return found
        beyond = [message for message in found if message.offset >= frontier.get(Place(message.topic, message.partition), 0)]
        for message in reversed(beyond):  # back to the first of each partition
            self._inner.seek(Place(message.topic, message.partition), message.offset)
        return [message for message in found if message not in beyond]

    def _join(self) -> MemoryMember:
        group, topics, committed = self._arguments
        member = self._connection.cluster.join(group, topics, committed=committed)
        member.at_revocation(lambda: self._last_word() if self._connection.can_speak else {})
        return member


class _Producer(Producer):
    """What is sent lands at once, or later; or it is lost, or lands and nobody says so."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.outbox = Outbox(connection.cluster.append)
        self._queued: Counter[Place] = Counter()

    async def send(self, message: Outgoing) -> Awaitable[int]:
        check_outgoing(message)
        connection, about = self._connection, dict(message.headers)["type"].decode()
        fault = await connection.call(about)
        acknowledgement = self.outbox.put(message)
        self._dispatch(Place(message.topic, message.partition), fault)
        if connection.traps:
            connection.spring(about, is_after=True)
        return acknowledgement

    def _dispatch(self, place: Place, fault: str) -> None:
        connection = self._connection
        if fault == "sends slow":
            connection.slow_until_s = connection.cluster.now_s() + connection.chance.uniform(0.3, 3.0)
        self._queued[place] += 1
        if fault == "sends lost":
            self.outbox.lose(place, keep=connection.chance.randrange(self._queued[place]))
        elif fault == "sends late":
            self.outbox.fail()
            connection.later(lambda: self._land(place), most_s=4.0)
        elif fault == "send unanswered":
            self._land(place, acknowledge=False)
            self.outbox.fail()
        elif self._queued[place] > 1 or connection.delay_s(place) or connection.chance.random() < SLOW_SHARE:
            connection.later(lambda: self._land(place), most_s=2 * SLOW_S)
        else:
            self._land(place)

    def _land(self, place: Place, *, acknowledge: bool = True) -> None:
        """One message more lands: the oldest that waits."""
        if wait_s := self._connection.delay_s(place):
            self._connection.later(lambda: self._land(place), least_s=wait_s, most_s=wait_s + SLOW_S)
        elif place in self.outbox.waiting():
            self._queued[place] -= 1
            self.outbox.land(place, acknowledge=acknowledge)


class _Transaction(Transaction):
    """A commit that may be lost, may not be answered, or may come so late that a younger transaction is there before it."""

    def __init__(self, connection: Connection, inner: MemoryTransaction) -> None:
        self._connection, self._inner = connection, inner
        self.is_under_way = False

    async def commit(self, messages: Sequence[Outgoing]) -> list[int]:
        connection = self._connection
        await connection.call()
        offsets = self._inner.stage(messages)
        fault = await connection.call(COMMIT)
        if fault == "commit lost":
            self._inner.abort_if_open()
        elif fault == "commit late":
            self.is_under_way = True
            connection.later(self._finish_late, most_s=1.0)
            await asyncio.sleep(connection.chance.random())
        else:
            self._inner.finish("committed")
        if fault:
            raise OutcomeUnknown(f"{fault}: the outcome of a transaction is not known")
        await connection.call(COMMITTED)
        return offsets

    def _finish_late(self) -> None:
        with suppress(Superseded):
            self._inner.finish("committed")
