"""An asyncio event loop without a clock and without a network: time jumps to the next timer when nothing else is to be done.

Invariants: `time()` never goes back and moves only while no callback is ready; the order of callbacks is a function of the order in which
they were scheduled; a loop in which nothing is scheduled any more raises Deadlock instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import selectors
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from typing import Any

import anyio

START_S = 1000.0
"""Not 0: software that takes "no time yet" for 0 would hide behind it."""

RESOLUTION_S = 1e-6
"""Below it a timer is due. A sum of virtual times is rounded by less."""

TURNS_LIMIT = 200_000
"""So many rounds of callbacks at one moment of virtual time are a loop without an end."""

_serials = itertools.count()


class Deadlock(RuntimeError):
    """Nothing is ready and no timer runs: whoever waits will wait for ever."""


class Livelock(RuntimeError):
    """Callbacks follow callbacks, and time stands still."""


class _Clock(selectors.BaseSelector):
    """The loop's selector. No file is ever ready; to wait is to move the clock."""

    def __init__(self) -> None:
        self.now_s = START_S
        self.next_timer: Callable[[], float] = lambda: START_S
        self._turns = 0
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        """The loop's own wake-up pipe, which nobody writes to."""
        key = self._keys[fileobj] = selectors.SelectorKey(fileobj, fileobj, events, data)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As `register`."""
        return self._keys.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Move the clock, where the loop would wait.

        :raises Deadlock: the loop would wait for ever.
        :raises Livelock: the clock has not moved for TURNS_LIMIT calls.
        """
        if timeout is None or (timeout > 0 and self.next_timer() == math.inf):
            raise Deadlock("nothing is ready and no timer runs")
        if timeout > 0:
            self.now_s = max(self.now_s, self.next_timer())
            self._turns = 0
        self._turns += 1
        if self._turns > TURNS_LIMIT:
            raise Livelock(f"time stands still at {self.now_s:.3f} s")
        return []

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        """What is registered."""
        return self._keys


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by its number: cancelling a set of tasks goes in one order, whatever their addresses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._serial = next(_serials)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._serial

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.SelectorEventLoop):
    """Use it by `run_virtually`."""

    def __init__(self) -> None:
        self._clock = _Clock()
        super().__init__(self._clock)
        self._clock.next_timer = self._next_timer
        self._clock_resolution = RESOLUTION_S
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds."""
        return self._clock.now_s

    def _next_timer(self) -> float:
        """Exactly when the next timer is due: the selector is told a difference, and a rounded sum would fall short of it."""
        return float(self._scheduled[0].when())  # type: ignore[attr-defined]


def _make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], *, context: Context | None = None) -> VirtualTask:
    return VirtualTask(coro, loop=loop, context=context)


def run_virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` to its end on a loop of its own.

    :raises Deadlock: it waits for what cannot come.
    """
    anyio.run(main, backend_options={"loop_factory": VirtualLoop})
