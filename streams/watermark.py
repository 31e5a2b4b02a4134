"""How far a reader of a consumer group may commit while its work finishes out of order. Pure.

Invariant: `next_offset` never passes a record whose work is not done, and passes every run of done ones.
"""

from __future__ import annotations

from collections import deque


class LowWatermark:
    """The work of one partition: offsets taken, in order, and which of them are done."""

    def __init__(self) -> None:
        self._taken: deque[int] = deque()
        self._done: set[int] = set()
        self.next_offset: int | None = None
        """The offset to commit; None before any record."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self, offset: int) -> None:
        """A record was read; its work begins."""
        if self.next_offset is None:
            self.next_offset = offset
        self._taken.append(offset)

    def done(self, offset: int) -> None:
        """Its work is done."""
        self._done.add(offset)
        while self._taken and self._taken[0] in self._done:
            self._done.discard(self._taken[0])
            self.next_offset = self._taken.popleft() + 1
