"""Watches over plain functions that cannot be interrupted: one that does not return would hold up the event loop, and with it all that
notices such things.

Two nets. A thread of Python looks at the call. A function that never lets go of the interpreter (a regular expression that tries all
ways, a power of large numbers) stops that thread, too. So each look winds up the clock of a thread without Python, which ends the process
when no look comes any more.

Invariants: the process ends at most LOOKS_S after a call has lasted longer than the limit, with the exit code of NoProgress and the line
at which the call is; if the interpreter is not let go of, at most NET_S after the limit, with exit code 1 and the lines of all threads. Its
supervisor starts it again, and the beginning that came to nothing is counted in the log (`workers.trials`).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from types import FrameType

from schemas.errors import NoProgress

__all__ = ["Guard"]

LOOKS_S = 1.0
NET_S = 5.0
"""How much longer than the limit nobody may have looked."""


class Guard:
    """`limit_s`: how long one call may take; `end` is called in the guard's thread with what was waited for. One caller at a time."""

    def __init__(self, limit_s: float, end: Callable[[str], None] | None = None) -> None:
        self._limit_s = limit_s
        self._end = end or _end_process
        self._call: tuple[float, str] | None = None
        self._caller = threading.get_ident()
        self._is_over = threading.Event()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """The guard watches for the length of this context."""
        thread = threading.Thread(target=self._watch, name="guard", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
            faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def over(self, call: str) -> Iterator[None]:
        """A call that must return; `call` says which."""
        self._call = monotonic(), call
        try:
            yield
        finally:
            self._call = None

    def _watch(self) -> None:
        self._wind_up()
        while not self._is_over.wait(min(LOOKS_S, self._limit_s / 2)):
            self._wind_up()
            call = self._call
            if call is not None and monotonic() - call[0] > self._limit_s:
                self._end(f"{call[1]} did not return within {self._limit_s:g} s; it was {_line(sys._current_frames().get(self._caller))}")
                return

    def _wind_up(self) -> None:
        if sys.__stderr__ is not None:
            faulthandler.dump_traceback_later(self._limit_s + NET_S, exit=True, file=sys.__stderr__)


def _line(frame: FrameType | None) -> str:
    """Where a thread is."""
    if frame is None:
        return "nowhere"
    at = traceback.extract_stack(frame)[-1]
    return f"at {at.filename}:{at.lineno}, in {at.name}"


def _end_process(what: str) -> None:
    print(f"seamlessflow: {NoProgress(what)}", file=sys.stderr, flush=True)
    os._exit(NoProgress.exit_code)  # the thread that could end the process cleanly is the one that does not return
