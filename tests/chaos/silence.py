"""What users of a pipeline feel of a fault: silences, measured by the broker's own clock (LogAppendTime). Pure but for what it is given."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

from schemas.session import Request
from schemas.span import Span
from schemas.topics import SESSIONS
from tests.flow.seen import Seen


def now_ms() -> int:
    """Milliseconds since 1970, as brokers on this machine count."""
    return time.time_ns() // 1_000_000


def answer_silence_s(seen: Seen, since_ms: int) -> float:
    """The longest time in which an agent that waits for one answer heard nothing of it: silences that ended after `since_ms`."""
    times_ms: dict[tuple[int, int], list[int]] = defaultdict(list)
    for request in seen.all(SESSIONS, Request):
        times_ms[request.partition, request.offset].append(request.timestamp_ms)
    for span in seen.all(SESSIONS, Span):
        times_ms[span.partition, span.record.request].append(span.timestamp_ms)
    return max((longest_gap_s(times, since_ms) for times in times_ms.values()), default=0.0)


def step_silence_s(seen: Seen, since_ms: int) -> float:
    """The longest time between two Steps, the second one after `since_ms`."""
    return longest_gap_s([step.timestamp_ms for step in seen.steps()], since_ms)


def longest_gap_s(times_ms: Iterable[int], since_ms: int) -> float:
    """The longest gap between two of these times that ended after `since_ms`, in seconds; 0 where there is none.

    >>> longest_gap_s([1000, 9000, 9500, 12_000], since_ms=9000)
    2.5
    """
    return max((after - before for before, after in pairwise(sorted(times_ms)) if after > since_ms), default=0) / 1000
