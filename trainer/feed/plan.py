"""From complete groups to a Batch: the exact plan, its trajectories, and all that its Step says of what was read.

Invariants: places are in the order of (partition, offset); every trainable token of a place is in one row, once; rows without any are not
made; the plan is a function of the groups, the version and the settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.training import Consumed, Dropped, Plan
from schemas.trajectory import Trajectory
from trainer.feed.join import Item
from trainer.layout import LayoutSettings, lay_out
from trainer.paths import Path

__all__ = ["Batch", "Chosen", "lay_out_chosen"]


@dataclass(frozen=True, slots=True)
class Chosen:
    """One session of a batch with the paths to train and its advantage."""

    item: Item
    paths: list[Path]
    advantage: float


@dataclass(frozen=True, slots=True)
class Batch:
    """What one Step trains and says. `trajectories` are in the order of `plan.places`."""

    plan: Plan
    trajectories: list[Trajectory]
    drops: list[Dropped]
    groups_trained: list[int]
    groups_dropped: list[int]
    consumed: Consumed
    version: int
    trained_tokens: int
    staleness: int
    reward_mean: float


def lay_out_chosen(chosen: Sequence[Chosen], layout: LayoutSettings, *, seed: int) -> tuple[Plan, list[Trajectory]]:
    """The plan of these sessions and their trajectories in its order."""
    ordered = sorted(chosen, key=lambda each: each.item.key)
    rows = [path.row(place, each.advantage) for place, each in enumerate(ordered) for path in each.paths]
    plan = lay_out([each.item.place for each in ordered], rows, layout, seed=seed)
    return plan, [each.item.trajectory for each in ordered]
