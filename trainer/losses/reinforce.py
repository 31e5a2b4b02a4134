"""Policy gradient with truncated importance sampling and no trust region: the shortest loss, for one update per batch.

−min(π_now/μ, cap) · A · log π − entropy·H, where π_now is π without its gradient: the weight follows the weights through the batch.
"""

from __future__ import annotations

import torch
from pydantic import Field

from trainer.losses.base import Loss, TokenLoss, Tokens

__all__ = ["Reinforce"]


class Reinforce(Loss):
    """Settings: `cap` of the importance weight, weight of the `entropy` bonus."""

    cap: float = Field(default=2.0, gt=0.0)
    entropy: float = Field(default=0.02, ge=0.0)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Facts: `importance` (before the cap), share of tokens `truncated` by the cap."""
        importance = torch.exp(tokens.logprob.detach() - tokens.behaviour)
        weight = importance.clamp(max=self.cap)
        value = -weight * tokens.advantage * tokens.logprob - self.entropy * tokens.entropy
        return TokenLoss(value=value, facts={"importance": importance, "truncated": (importance > self.cap).float()})
