"""AdamW (Loshchilov & Hutter, arXiv 1711.05101) with a clipped gradient and a ramp, its state as named tensors.

torch.optim is not used: making one of its optimizers imports torch's compiler, 9 seconds of CPU at every start of a trainer.

Invariants:
- state is `moments()` and `updates`, nothing else; the learning rate is a function of `updates`;
- an update whose gradient is not finite changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite, sqrt

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor
from torch.nn import Parameter

from schemas.errors import SeamlessFlowError

__all__ = ["AdamW", "OptimizerSettings"]


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


class AdamW:
    """Updates parameters in place from their gradients. `updates` counts from the beginning of the run, over restarts."""

    def __init__(self, named_parameters: Iterable[tuple[str, Parameter]], settings: OptimizerSettings) -> None:
        self.settings = settings
        self.updates = 0
        self._parameters = dict(named_parameters)
        self._first = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}
        self._second = {name: torch.zeros_like(parameter) for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def step(self) -> float:
        """One update from the gradients that stand; they are cleared. Returns their norm before clipping.

        :raises SeamlessFlowError: the norm is not finite.
        """
        gradients = {name: parameter.grad for name, parameter in self._parameters.items() if parameter.grad is not None}
        norm = float(torch.stack([gradient.norm() for gradient in gradients.values()]).norm())
        if not isfinite(norm):
            raise SeamlessFlowError(f"the gradient of update {self.updates + 1} has norm {norm}: lower the learning rate")
        scale = min(1.0, self.settings.grad_norm / (norm + 1e-6))
        for name, gradient in gradients.items():
            self._move(name, gradient.mul_(scale))
            self._parameters[name].grad = None
        self.updates += 1
        return norm

    def moments(self) -> dict[str, Tensor]:
        """`<parameter>.first` and `<parameter>.second`: running means of gradient and squared gradient, the live tensors."""
        first = {f"{name}.first": tensor for name, tensor in self._first.items()}
        return first | {f"{name}.second": tensor for name, tensor in self._second.items()}

    @torch.no_grad()
    def restore(self, moments: Mapping[str, Tensor], updates: int) -> None:
        """Take over the state of another optimizer of the same parameters; without moments, stand at the beginning.

        :raises KeyError: a moment is missing.
        :raises RuntimeError: shapes differ.
        """
        for name, tensor in self.moments().items():
            tensor.copy_(moments[name]) if moments else tensor.zero_()
        self.updates = updates

    def _move(self, name: str, gradient: Tensor) -> None:
        """Algorithm 2 of the paper; the means are corrected for having begun at 0."""
        parameter, first, second = self._parameters[name], self._first[name], self._second[name]
        rate, (beta1, beta2), count = self.settings.rate(self.updates), self.settings.betas, self.updates + 1
        first.lerp_(gradient, 1.0 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1.0 - beta2)
        deviation = second.sqrt().div_(sqrt(1.0 - beta2**count)).add_(self.settings.epsilon)
        parameter.mul_(1.0 - rate * self.settings.weight_decay)
        parameter.addcdiv_(first, deviation, value=-rate / (1.0 - beta1**count))
