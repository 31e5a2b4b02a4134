"""One Step's arithmetic: a plan and its trajectories change a learner. All numbers of training meet here.

Invariants:
- the result is a function of (weights, moments, updates, plan, trajectories, settings): no seed, no clock, no order of a dict. Under one
  numerics key it is the same to the last bit, in any process (R7);
- every trained token of a mini-batch weighs the same, however it is split into micro-batches;
- π_old is the learner at the start of the batch, for all epochs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from pydantic import BaseModel, ConfigDict, model_validator
from torch import Tensor

from models.qwen2 import Qwen2
from schemas.errors import CorruptRecord
from schemas.training import Plan
from schemas.trajectory import Trajectory
from trainer.attention import per_segment
from trainer.batch import MicroBatch, micro_batches
from trainer.learner import Learner
from trainer.losses import Loss, Tokens, make_loss

__all__ = ["Applied", "LossSettings", "apply", "token_logprobs"]


class LossSettings(BaseModel):
    """Which loss (`trainer.losses.LOSSES`) with which settings; both are checked when this is made."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "clipped"
    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _known(self) -> Self:
        self.make()
        return self

    def make(self) -> Loss:
        """The loss.

        :raises UsageError: unknown name or setting.
        """
        return make_loss(self.name, self.settings)


@dataclass(frozen=True, slots=True)
class Applied:
    """What a Step says of itself. `metrics` are for people: means over tokens or updates."""

    trained_tokens: int
    """Distinct ones, whatever the epochs."""
    lowest_version: int
    """Among the trained tokens: staleness is the step's version minus this."""
    metrics: dict[str, float]


@dataclass(slots=True)
class _Sums:
    """Sums over trained tokens, and over updates, in float64."""

    tokens: int = 0
    updates: int = 0
    by_token: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    by_update: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def means(self) -> dict[str, float]:
        of_tokens = {name: total / self.tokens for name, total in self.by_token.items()}
        return of_tokens | {name: total / self.updates for name, total in self.by_update.items()}


def apply(learner: Learner, plan: Plan, trajectories: Sequence[Trajectory], loss: LossSettings) -> Applied:
    """Train `learner` on a plan: its mini-batches in order, `epochs` times, one optimizer update each.

    :param trajectories: in the order of `plan.places`.
    :raises CorruptRecord: plan and trajectories do not fit, or a mini-batch trains nothing. The learner may have changed: load it again.
    :raises SeamlessFlowError: a gradient is not finite.
    """
    batches = micro_batches(plan, trajectories)
    old = _old_logprobs(learner.model, batches, skip=plan.mini_batches[0])
    made, sums = loss.make(), _Sums()
    for _ in range(plan.epochs):
        for mini_batch in plan.mini_batches:
            _update(learner, [(index, batches[index]) for index in mini_batch], old, made, sums)
    return Applied(
        trained_tokens=sum(batch.trained for batch in batches),
        lowest_version=min(int(batch.version.min()) for batch in batches if batch.trained),
        metrics={**sums.means(), "learning_rate": learner.optimizer.settings.rate(learner.optimizer.updates - 1)},
    )


def token_logprobs(model: Qwen2, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    """(logprob, entropy), both float32[n] in nats, of the trained tokens at the temperature that sampled them (R11)."""
    hidden = model.hidden(batch.tokens, batch.positions, per_segment(batch.lengths))
    logits = model.head(hidden[0].index_select(0, batch.predictors)).float()
    logprobs = torch.log_softmax(logits / batch.temperature[:, None], dim=-1)
    entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, batch.targets[:, None])[:, 0], entropy


def _old_logprobs(model: Qwen2, batches: Sequence[MicroBatch], skip: Iterable[int]) -> dict[int, Tensor]:
    """π_old by micro-batch. Those of the first mini-batch are met before any update, so that their first pass gives it for nothing."""
    skipped = set(skip)
    with torch.no_grad():
        return {index: token_logprobs(model, batch)[0] for index, batch in enumerate(batches) if index not in skipped}


def _update(learner: Learner, mini_batch: list[tuple[int, MicroBatch]], old: dict[int, Tensor], loss: Loss, sums: _Sums) -> None:
    trained = sum(batch.trained for _, batch in mini_batch)
    if not trained:
        raise CorruptRecord("a mini-batch of the plan trains no token")
    for index, batch in mini_batch:
        logprob, entropy = token_logprobs(learner.model, batch)
        before = old.setdefault(index, logprob.detach())
        terms = loss(Tokens(logprob=logprob, entropy=entropy, old=before, behaviour=batch.behaviour, advantage=batch.advantage))
        (terms.value.sum() / trained).backward()  # type: ignore[no-untyped-call]
        facts = {"loss": terms.value, "entropy": entropy, "kl_old": before - logprob, **terms.facts}
        for name, values in facts.items():
            sums.by_token[name] += float(values.detach().sum())
    sums.tokens += trained
    sums.by_update["grad_norm"] += learner.optimizer.step()
    sums.updates += 1
