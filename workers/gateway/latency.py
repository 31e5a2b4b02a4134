"""What the log cost agents: the time of a call beyond the engine's, over the last calls. Pure.

Invariant: bounded, whatever the number of calls; the quantiles are those of the calls that are kept, by nearest rank.
"""

from __future__ import annotations

import math
from collections import deque

KEPT_CALLS = 20_000


class Latency:
    """Added latency in milliseconds, newest last."""

    def __init__(self, kept: int = KEPT_CALLS) -> None:
        self._added_ms: deque[float] = deque(maxlen=kept)
        self.calls = 0

    def add(self, whole_ms: float, engine_ms: float) -> None:
        """A call was answered `whole_ms` after it was received; the engine had it for `engine_ms`."""
        self.calls += 1
        self._added_ms.append(max(0.0, whole_ms - engine_ms))

    def figures(self) -> dict[str, float] | None:
        """`p50` and `p99`, ms; None before the first call."""
        if not self._added_ms:
            return None
        ordered = sorted(self._added_ms)
        return {f"p{share}": round(ordered[math.ceil(len(ordered) * share / 100) - 1], 3) for share in (50, 99)}
