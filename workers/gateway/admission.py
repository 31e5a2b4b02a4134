"""How many calls are in flight, and how much they hold: beyond the bounds a call is refused, never dropped (R10). Pure.

Invariant: what was admitted is released once, however the call ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from workers.gateway.problems import overloaded


class Admission:
    """Counts calls and the bytes of their bodies."""

    def __init__(self, max_calls: int, max_bytes: int) -> None:
        self._max_calls, self._max_bytes = max_calls, max_bytes
        self.calls = 0
        self.size_bytes = 0

    @contextmanager
    def admit(self, size_bytes: int) -> Iterator[None]:
        """For the length of a call.

        :raises Problem: 429, there is no room.
        """
        if self.calls >= self._max_calls:
            raise overloaded(f"{self.calls} calls are in flight; this gateway takes {self._max_calls}")
        if self.calls and self.size_bytes + size_bytes > self._max_bytes:
            raise overloaded(f"the calls in flight hold {self.size_bytes} bytes; this gateway takes {self._max_bytes}")
        self.calls += 1
        self.size_bytes += size_bytes
        try:
            yield
        finally:
            self.calls -= 1
            self.size_bytes -= size_bytes
