"""Virtual time: what happens next, and when. Events at one time happen in the order in which they were planned."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from schemas.errors import NoProgress

__all__ = ["Clock"]


class Clock:
    """`now_s` is in seconds since the start of the simulation; it never goes back."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Call `act` at this time, or at once if it has passed."""
        heapq.heappush(self._events, (max(time_s, self.now_s), next(self._numbers), act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Call `act` so many seconds from now."""
        self.at(self.now_s + delay_s, act)

    def run(self, is_done: Callable[[], bool], limit_s: float) -> None:
        """Let things happen until it is done.

        :raises NoProgress: nothing is left to happen, or the limit has passed.
        """
        while not is_done():
            if not self._events or self._events[0][0] > limit_s:
                raise NoProgress(f"nothing more happens after {self.now_s:.0f} s, or before {limit_s:.0f} s: see the workload")
            self.now_s, _, act = heapq.heappop(self._events)
            act()
