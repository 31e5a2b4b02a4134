"""The contract of a loss: what is known of each trained token in, one differentiable number per token out.

The mean over the tokens of a mini-batch is taken outside (`trainer.update`), so that the split into micro-batches changes no weight of
any token.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict
from torch import Tensor

__all__ = ["Loss", "TokenLoss", "Tokens"]


@dataclass(frozen=True, slots=True)
class Tokens:
    """Trained tokens; every tensor is float32[n], logprobs and entropies in nats, at the temperature that sampled the token (R11)."""

    logprob: Tensor
    """Under the weights being trained; carries the gradient."""
    entropy: Tensor
    """Of the whole distribution at that place; carries the gradient."""
    old: Tensor
    """Under the weights at the start of the batch."""
    behaviour: Tensor
    """As recorded when the token was sampled."""
    advantage: Tensor


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """`value` float32[n], to be averaged and minimised; `facts` by name float32[n], without gradient, averaged for people."""

    value: Tensor
    facts: dict[str, Tensor] = field(default_factory=dict)


class Loss(BaseModel, ABC):
    """An algorithm; its fields are its settings. Unknown settings are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def __call__(self, tokens: Tokens) -> TokenLoss:
        """The loss of each token."""
