"""The cluster that all simulated processes share: the double of Kafka, who waits for which topic, and a journal of what happened.

Invariants: the journal holds every record that was written and everything that was done to a process, in order; while the cluster is away
nothing is written and nobody is answered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

from streams.broker import Message, Outgoing, Place
from streams.memory import MemoryBroker
from streams.memory.partition import Write
from tests.simulation.virtual_loop import RESOLUTION_S

EPOCH_S = 1_700_000_000
"""What the broker's wall clock shows when virtual time is 0."""

FETCH_S = 0.02
"""How long after a record its readers hear of it: what comes meanwhile is read with it, as a broker answers a fetch."""


class Happening(NamedTuple):
    """One line of the journal: a record (`place` and `offset` say where), or a word about a process or a fault."""

    at_s: float
    what: str
    place: Place | None = None
    offset: int = -1

    def __str__(self) -> str:
        where = "" if self.place is None else f" {self.place.topic}/{self.place.partition}@{self.offset}"
        return f"{self.at_s:10.4f} {self.what}{where}"


class Cluster(MemoryBroker):
    """One broker for all. `skew_s` is how wrong its wall clock is; `steps` counts the Steps that were written, aborted ones too."""

    def __init__(self) -> None:
        super().__init__(clock=self._wall_clock)
        self._loop = asyncio.get_running_loop()
        self.now_s = self._loop.time
        self.journal: list[Happening] = []
        self.steps = 0
        self.skew_s = 0.0
        self.is_away = False
        self.back = asyncio.Event()
        self.back.set()
        self._waking: set[str] = set()
        self._waiting: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)

    @property
    def places(self) -> Collection[Place]:
        """All partitions of all topics."""
        return self._logs.keys()

    def note(self, what: str) -> None:
        """Put a word into the journal."""
        self.journal.append(Happening(self.now_s(), what))

    def leave_for_a_while(self, away_s: float) -> None:
        """Answer nobody for so long."""
        self.is_away = True
        self.back.clear()
        self._loop.call_later(away_s, self._return)

    def append(self, message: Outgoing, write: Write | None = None) -> int:
        """Put a message at the end of its partition and wake the readers of its topic; answers its offset."""
        place = Place(message.topic, message.partition)
        offset = self.log(place).append(message, int(self._wall_clock() * 1000), write)
        kind = dict(message.headers)["type"].decode()
        self.steps += kind == "Step"
        self.journal.append(Happening(self.now_s(), kind, place, offset))
        if place.topic not in self._waking:
            self._waking.add(place.topic)
            self._loop.call_later(FETCH_S, self._wake, place.topic)
        return offset

    async def turn(self) -> None:
        """Who goes first is decided in `Connection.call`."""

    def after(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call back so much later."""
        self._loop.call_later(seconds, callback)

    def wake(self) -> None:
        """Let all readers look again."""
        for topic in list(self._waiting):
            self._wake(topic)

    async def news(self, topics: Iterable[str], deadline_s: float) -> bool:
        """Wait until one of the topics may have something new, or until the deadline; whether that lies ahead."""
        loop = self._loop
        waiter: asyncio.Future[None] = loop.create_future()
        timer = loop.call_at(deadline_s, _release, waiter)
        for topic in topics:
            self._waiting[topic].append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
        return deadline_s - loop.time() > RESOLUTION_S  # the loop fires a timer so much before its time

    def messages(self) -> Iterator[Message]:
        """Everything that a reader could read now, transactions after their commit alone."""
        for place in self._logs:
            yield from self.log(place).read(self.log(place).start, 1 << 30, committed=True)[0]

    def commits(self, group: str) -> dict[int, tuple[int, str]]:
        """By partition: the offset and the metadata that a group (full name) committed for its one topic."""
        offsets = self._groups[group].offsets if group in self._groups else {}
        return {place.partition: committed for place, committed in offsets.items()}

    def _return(self) -> None:
        self.is_away = False
        self.back.set()

    def _wake(self, topic: str) -> None:
        self._waking.discard(topic)
        waiting = self._waiting[topic]
        if waiting:
            self._waiting[topic] = []
            for waiter in waiting:
                _release(waiter)

    def _wall_clock(self) -> float:
        return EPOCH_S + self.now_s() + self.skew_s


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
