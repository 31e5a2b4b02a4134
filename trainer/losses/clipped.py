"""Clipped policy loss with truncated importance sampling: the default.

−min(π_old/μ, cap) · min(ρA, clip(ρ, 1 − low, 1 + high)·A) − entropy·H, with ρ = π/π_old. The first factor corrects for tokens that an
older version sampled (μ); π_old, not μ, is the centre of the trust region (decoupled objective, arXiv 2110.00641). The cap keeps a
token that became likely from dominating its batch. The upper clip is the wider one (arXiv 2503.14476), so that rare tokens can grow.
"""

from __future__ import annotations

import torch
from pydantic import Field

from trainer.losses.base import Loss, TokenLoss, Tokens

__all__ = ["Clipped"]


class Clipped(Loss):
    """Settings: `cap` of the importance weight, `clip_low` and `clip_high` around a ratio of 1, weight of the `entropy` bonus."""

    cap: float = Field(default=2.0, gt=0.0)
    clip_low: float = Field(default=0.2, ge=0.0, lt=1.0)
    clip_high: float = Field(default=0.28, ge=0.0)
    entropy: float = Field(default=0.02, ge=0.0)

    def __call__(self, tokens: Tokens) -> TokenLoss:
        """Facts: `importance` (before the cap), share of tokens `truncated` by the cap, share `clipped`, where the gradient is zero."""
        importance = torch.exp(tokens.old - tokens.behaviour)
        weight = importance.clamp(max=self.cap)
        ratio = torch.exp(tokens.logprob - tokens.old)
        free = ratio * tokens.advantage
        bound = ratio.clamp(1.0 - self.clip_low, 1.0 + self.clip_high) * tokens.advantage
        value = -weight * torch.minimum(free, bound) - self.entropy * tokens.entropy
        facts = {
            "importance": importance,
            "truncated": (importance > self.cap).float(),
            "clipped": (bound < free).detach().float(),
        }
        return TokenLoss(value=value, facts=facts)
