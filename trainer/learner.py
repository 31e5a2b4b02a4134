"""The state that training changes: weights, optimizer moments, number of updates; and nothing else (R7).

Invariant: two learners with equal `weights()`, `moments()` and `updates` give equal results for ever under one numerics key.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from models.qwen2 import Qwen2
from models.weights import weights_sha256
from schemas.errors import SeamlessFlowError

__all__ = ["Learner", "OptimizerSettings"]


class OptimizerSettings(BaseModel):
    """AdamW. The learning rate grows in a straight line over the first `warm_updates` updates of a run, then stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    learning_rate: float = Field(default=5e-4, gt=0.0)
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = Field(default=1e-8, gt=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    grad_norm: float = Field(default=1.0, gt=0.0)
    warm_updates: int = Field(default=10, ge=0)

    def rate(self, updates: int) -> float:
        """Learning rate of the next update, after `updates` earlier ones: a function of state that the checkpoint holds."""
        return self.learning_rate * min(1.0, (updates + 1) / max(1, self.warm_updates))


class Learner:
    """A model and its optimizer."""

    def __init__(self, model: Qwen2, settings: OptimizerSettings) -> None:
        self.model = model
        self.settings = settings
        self.updates = 0
        self._names = [name for name, _ in model.named_parameters()]
        self._parameters = list(model.parameters())
        self._optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, betas=settings.betas, eps=settings.epsilon,
            weight_decay=settings.weight_decay, fused=True,
        )  # fmt: skip

    def update(self) -> float:
        """One optimizer step from the gradients that stand; they are cleared. Returns their norm before clipping.

        :raises SeamlessFlowError: the norm is not finite. Weights and moments are then untouched.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.grad_norm))
        if norm != norm or norm == float("inf"):
            raise SeamlessFlowError(f"the gradient of update {self.updates + 1} has norm {norm}: lower the learning rate")
        for group in self._optimizer.param_groups:
            group["lr"] = self.settings.rate(self.updates)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        return norm

    def weights(self) -> dict[str, Tensor]:
        """The model's tensors by their names in safetensors; they are the live ones, not copies."""
        return dict(self.model.state_dict())

    def moments(self) -> dict[str, Tensor]:
        """The optimizer's tensors, `<parameter>.<exp_avg|exp_avg_sq|step>`: live; empty before the first update."""
        state = self._optimizer.state
        pairs = zip(self._names, self._parameters, strict=True)
        return {f"{name}.{kind}": tensor for name, parameter in pairs for kind, tensor in sorted(state.get(parameter, {}).items())}

    def restore(self, weights: Mapping[str, Tensor], moments: Mapping[str, Tensor], updates: int) -> None:
        """Take over the state of another learner of the same model.

        :raises RuntimeError: names or shapes differ.
        """
        self.model.load_state_dict(weights)
        own = dict(zip(self._names, self._parameters, strict=True))
        self._optimizer.state.clear()
        for key, tensor in moments.items():
            name, _, kind = key.rpartition(".")
            self._optimizer.state[own[name]][kind] = tensor.clone()
        self.updates = updates

    def digests(self) -> tuple[str, str]:
        """sha256 of weights and of moments, as a Step records them."""
        return weights_sha256(self.weights()), weights_sha256(self.moments())
