"""Figures from measurements: times, quantiles, ratios, and who goes first. Pure but for the clocks.

Invariants: a quantile is a measured value, never one between two; in as many rounds as there are contenders each goes first once.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Timing:
    """How long something took, in seconds: by the wall, and of this process's CPU."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


@contextmanager
def stopwatch() -> Iterator[Timing]:
    """A Timing that is filled in when the context is left."""
    timing, wall_s, cpu_s = Timing(), time.perf_counter(), time.process_time()
    yield timing
    timing.wall_s, timing.cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of `values` that at least `share` (0 … 1) of them do not exceed.

    :raises ValueError: there are none.
    """
    if not values:
        raise ValueError("a quantile of no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def rotated(contenders: Sequence[T], round_number: int) -> list[T]:
    """The order of a round: each goes first in its turn, so that none always meets a warm or a cold machine."""
    first = round_number % len(contenders)
    return [*contenders[first:], *contenders[:first]]


def ratio(raw: Sequence[Timing], ours: Sequence[Timing], of: Callable[[Timing], float]) -> float:
    """Median of `raw` over median of `ours`: 1.0 is as fast, less is slower."""
    return median(map(of, raw)) / median(map(of, ours))


def load_average() -> float:
    """Processes that ran or wanted to, on average over the last minute."""
    return os.getloadavg()[0]


def cpu_time_s(pid: int) -> float:
    """CPU seconds that a process has used so far, user and system; 0.0 where the system does not tell, or there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
