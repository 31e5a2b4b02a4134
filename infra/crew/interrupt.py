"""What ends a command that looks after processes: SIGTERM and a closed terminal do what Ctrl-C does, so that nothing is left behind."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """The first of these signals raises KeyboardInterrupt. While the roles end, which is bounded in time, further ones are ignored."""

    def interrupt(number: int, _: object) -> NoReturn:
        for each in NUMBERS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
