"""How long taking partitions took, in its two halves: until they are owned, and from there until the first new token. Pure.

*Owned*: from the Grant's answer to the own Claim read back, which is reading what is open and the log's own delay. *First token*: from
there to the first one sampled, where requests waited, which is the prefill of what was generated before. Seconds of any growing clock.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["TakeoverClock"]


class TakeoverClock:
    """Figures of the newest taking: `own_s` and `first_token_s` are those of its slowest partition so far."""

    def __init__(self) -> None:
        self.own_s = 0.0
        self.first_token_s = 0.0
        self._taken: dict[int, float] = {}
        self._owned: dict[int, float] = {}

    def taken(self, partitions: Iterable[int], now_s: float) -> None:
        """Reading of these partitions begins."""
        self.own_s = self.first_token_s = 0.0
        self._taken.update(dict.fromkeys(partitions, now_s))

    def owned(self, partition: int, now_s: float, unfinished: int) -> float:
        """The own Claim was read back, and `unfinished` requests are to be continued; answers the seconds since `taken`."""
        own_s = now_s - self._taken.pop(partition, now_s)
        self.own_s = max(self.own_s, own_s)
        if unfinished:
            self._owned[partition] = now_s
        return own_s

    def sampled(self, partition: int, now_s: float) -> float | None:
        """Tokens came; answers the seconds since `owned` if they are the first that were waited for."""
        if partition not in self._owned:
            return None
        first_token_s = now_s - self._owned.pop(partition)
        self.first_token_s = max(self.first_token_s, first_token_s)
        return first_token_s

    def gone(self, partition: int) -> None:
        """The partition is not held any more."""
        self._taken.pop(partition, None)
        self._owned.pop(partition, None)
