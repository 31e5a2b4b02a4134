"""The state that training changes: weights, optimizer moments, number of updates; and nothing else (R7).

Invariant: two learners with equal weights, moments and updates give equal results for ever under one numerics key.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from models.qwen2 import Qwen2
from models.weights import weights_sha256
from trainer.optimizer import AdamW, OptimizerSettings

__all__ = ["Learner", "OptimizerSettings"]


class Learner:
    """A model and its optimizer."""

    def __init__(self, model: Qwen2, settings: OptimizerSettings) -> None:
        self.model = model
        self.optimizer = AdamW(model.named_parameters(), settings)

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by their names in safetensors; they are the live ones, not copies."""
        return dict(self.model.state_dict())

    def digests(self) -> tuple[str, str]:
        """sha256 of weights and of moments, as a Step records them."""
        return weights_sha256(self.weights()), weights_sha256(self.optimizer.moments())

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], updates: int) -> None:
        """Copy the state of another learner of the same model; no moments and 0 updates are a beginning.

        :raises RuntimeError: names or shapes of weights differ, or shapes of moments.
        :raises KeyError: a moment is missing.
        """
        self.model.load_state_dict(weights)
        self.optimizer.restore(moments, updates)
