"""Reward minus a constant: for a session without a group, which has nobody to be compared with.

A constant and not a running mean: a restarted trainer, or a reader of the log, gets the same value without any history.
"""

from __future__ import annotations

from collections.abc import Sequence

from trainer.advantages.base import Advantage

__all__ = ["Baseline"]


class Baseline(Advantage):
    """A = (r − baseline) · scale."""

    baseline: float = 0.5
    scale: float = 1.0

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per reward; a reward equal to the baseline has no signal."""
        return [(reward - self.baseline) * self.scale for reward in rewards]
