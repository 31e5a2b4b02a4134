"""An asyncio event loop without a clock and without a network: time jumps to the next timer when nothing else is to be done.

It is asyncio's own loop but for how callbacks wait and how time passes: those take half of a schedule's time where they are asyncio's.

Invariants: `time()` never goes back and moves only while no callback is ready; callbacks run in the order in which they were scheduled,
timers in the order of their times, those of one time in the order in which they were set; a loop in which nothing is scheduled any more
raises Deadlock instead of waiting for ever.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from typing import Any
from unittest.mock import patch

import anyio
from anyio._core import _eventloop

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


class VirtualTask(asyncio.Task[Any]):
    """A task that hashes by its number: cancelling a set of tasks goes in one order, whatever their addresses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._serial = next(_serials)
        super().__init__(*args, **kwargs)

    def __hash__(self) -> int:
        return self._serial


class _Call:
    """A callback that waits: what asyncio calls a Handle, and a TimerHandle where `at_s` says when."""

    __slots__ = ("_at_s", "arguments", "callback", "context", "is_cancelled")

    def __init__(self, callback: Callable[..., object], arguments: tuple[Any, ...], context: Context | None, at_s: float = 0.0) -> None:
        self.callback, self.arguments, self.context, self._at_s = callback, arguments, context or copy_context(), at_s
        self.is_cancelled = False

    def cancel(self) -> None:
        """It will not be called."""
        self.is_cancelled = True

    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.is_cancelled

    def when(self) -> float:
        """When it is due."""
        return self._at_s


class VirtualLoop(asyncio.BaseEventLoop):
    """Use it by `run_virtually`."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = START_S
        self._turns = 0
        self._calls: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timer_numbers = itertools.count()
        self.set_task_factory(_make_task)  # type: ignore[arg-type]

    def time(self) -> float:
        """Virtual seconds."""
        return self._now_s

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        call = _Call(callback, args, context)
        self._calls.append(call)
        return call

    call_soon_threadsafe = call_soon

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        call = _Call(callback, args, context, when)
        if when != math.inf:
            heapq.heappush(self._timers, (when, next(self._timer_numbers), call))
        return call

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        """See `asyncio.AbstractEventLoop`."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _run_once(self) -> None:
        """One round of asyncio's `run_forever`: what was ready when it began.

        :raises Deadlock: the loop would wait for ever.
        :raises Livelock: the clock has not moved for TURNS_LIMIT rounds.
        """
        if not self._calls and not self._stopping:  # type: ignore[attr-defined]
            self._pass_time()
        self._turns += 1
        if self._turns > TURNS_LIMIT:
            raise Livelock(f"time stands still at {self._now_s:.3f} s")
        self._take_due()
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            if call.is_cancelled:
                continue
            try:
                call.context.run(call.callback, *call.arguments)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # as asyncio: a callback's error is no end of the loop
                self.call_exception_handler({"message": f"error in {call.callback!r}", "exception": error})

    def _pass_time(self) -> None:
        while self._timers and self._timers[0][2].is_cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Deadlock("nothing is ready and no timer runs")
        self._now_s = max(self._now_s, self._timers[0][0])
        self._turns = 0

    def _take_due(self) -> None:
        timers, until_s = self._timers, self._now_s + RESOLUTION_S
        while timers and timers[0][0] < until_s:
            self._calls.append(heapq.heappop(timers)[2])


def _make_task(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], *, context: Context | None = None) -> VirtualTask:
    return VirtualTask(coro, loop=loop, context=context)


def run_virtually(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `main` to its end on a loop of its own.

    :raises Deadlock: it waits for what cannot come.
    """

    async def on_asyncio() -> None:
        with patch.object(_eventloop, "current_async_library", lambda: "asyncio"):  # anyio asks for it a hundred times a record
            await main()

    anyio.run(on_asyncio, backend_options={"loop_factory": VirtualLoop})
