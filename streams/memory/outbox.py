"""What a producer in memory has sent and the log has not taken yet: the place where faults of producers are made.

Invariants: messages of one partition land in the order in which they were sent, each at most once; only a suffix is ever lost; after a
loss the producer is broken, so that nothing lands behind the hole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any

import anyio

from schemas.errors import OutcomeUnknown
from streams.broker import Outgoing, Place


class Acknowledgement:
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
        if not self._settled.is_set():  # an event that is set would let others go first
            await self._settled.wait()
        if self._offset is None:
            raise OutcomeUnknown("the producer broke before this write was acknowledged")
        return self._offset


class Outbox:
    """What one producer sent and the log has not taken yet, in order per partition. It outlives its producer."""

    def __init__(self, append: Callable[[Outgoing], int]) -> None:
        self._append = append
        self._waiting: dict[Place, deque[tuple[Outgoing, Acknowledgement]]] = {}
        self._unsettled: dict[Acknowledgement, None] = {}
        self.broken = False

    def waiting(self) -> dict[Place, int]:
        """How many messages wait for each partition."""
        return {place: len(queue) for place, queue in self._waiting.items() if queue}

    def put(self, message: Outgoing) -> Acknowledgement:
        """Queue a message.

        :raises OutcomeUnknown: the producer is broken.
        """
        if self.broken:
            raise OutcomeUnknown("this producer is broken; make another one")
        acknowledgement = Acknowledgement()
        self._unsettled[acknowledgement] = None
        self._waiting.setdefault(Place(message.topic, message.partition), deque()).append((message, acknowledgement))
        return acknowledgement

    def land(self, place: Place, *, acknowledge: bool = True) -> int:
        """The log takes the oldest message of a partition; answers its offset. A broken producer hears nothing of it."""
        message, acknowledgement = self._waiting[place].popleft()
        offset = self._append(message)
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
