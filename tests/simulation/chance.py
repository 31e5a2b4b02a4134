"""Everything that would make two runs of a seed differ, replaced: random bytes, wall clocks, what the product logs.

Invariant: inside `determined(seed)` the product draws random bytes from the seed and reads the virtual clock, wherever it asks for either.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import anyio
import structlog

from workers.gateway import app, calls, mirror

T = TypeVar("T")


def hush() -> None:
    """What roles log is not looked at: most of it would be faults that were asked for."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


@contextmanager
def determined(seed: str) -> Iterator[None]:
    """`secrets` and the wall clocks as functions of `seed` and of the virtual time."""
    draw = random.Random(f"{seed} secrets")

    def choose(options: Sequence[T]) -> T:
        return options[int(draw.random() * len(options))]

    replaced: list[tuple[Any, str, Callable[..., object]]] = [
        (secrets, "token_bytes", draw.randbytes),
        (secrets, "token_hex", lambda count: draw.randbytes(count).hex()),
        (secrets, "randbelow", draw.randrange),
        (secrets, "choice", choose),
        (time, "time_ns", lambda: int(anyio.current_time() * 1e9)),
        *((module, "monotonic", anyio.current_time) for module in (app, calls, mirror)),
    ]
    with ExitStack() as stack:
        for module, name, value in replaced:
            stack.enter_context(patch.object(module, name, value))
        yield
