"""Group-relative advantage (DeepSeekMath, arXiv 2402.03300, section 4.1.2): a reward in standard deviations from its group's mean."""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum, sqrt

from pydantic import Field

from trainer.advantages.base import Advantage

__all__ = ["Grpo"]


class Grpo(Advantage):
    """A = (r − mean) / (std + epsilon), with the sample standard deviation (n − 1).

    A group without variance, or of one member, has no signal: all zeros.
    """

    epsilon: float = Field(default=1e-4, ge=0.0)

    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per member, in their order. Sums are exact, so the order of members changes no value."""
        if len(set(rewards)) < 2:
            return [0.0] * len(rewards)
        mean = fsum(rewards) / len(rewards)
        deviation = sqrt(fsum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
        return [(reward - mean) / (deviation + self.epsilon) for reward in rewards]
