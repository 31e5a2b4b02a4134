"""Settings of the feed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trainer.feed.join import REPORTED
from trainer.feed.staleness import Stale
from trainer.layout import LayoutSettings

__all__ = ["FeedSettings", "Incomplete"]

Incomplete = Literal["drop", "train"]
"""What happens at its deadline to a group with at least two usable sessions, but not all."""


class FeedSettings(BaseModel):
    """How trajectories become batches."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    groups_per_step: int = Field(default=4, ge=1, description="Groups in a batch; a session without a group counts as one.")
    rules: dict[str, float] = Field(
        default={REPORTED: 1.0}, min_length=1,
        description="Weight of each reward rule; a session is scored when all have answered. `reported`: the reward of the agent's runner.",
    )  # fmt: skip
    advantage: str = Field(default="grpo", description="Advantage of the sessions of a group (trainer.advantages).")
    advantage_settings: dict[str, Any] = Field(default={}, description="Settings of that advantage.")
    alone: str = Field(default="baseline", description="Advantage of a session without a group.")
    alone_settings: dict[str, Any] = Field(default={}, description="Settings of that advantage.")
    staleness_bound: int = Field(default=4, ge=0, description="Greatest (version of the step − lowest version of a trained token).")
    stale: Stale = Field(default="mask", description="Beyond the bound: `mask` the tokens, or `drop` their session.")
    incomplete: Incomplete = Field(default="drop", description="At the deadline of a group with two or more usable sessions, but not all.")
    group_deadline_s: float = Field(
        default=1800.0, gt=0,
        description="From the first that is heard of a group to its end. Longer than the agents' `episode_s` and the assembler's `idle_s` "
        "together, or groups end before their last sessions can.",
    )  # fmt: skip
    retry_s: float = Field(
        default=300.0, ge=0,
        description="How long a group whose sessions all ended waits for another attempt to end, within its deadline: about an episode.",
    )  # fmt: skip
    drops_deadline_s: float = Field(default=10.0, ge=0, description="Drops are committed by themselves when no Step follows for so long.")
    layout: LayoutSettings = Field(default=LayoutSettings(), description="Micro-batches, mini-batches and epochs.")
    seed: int = Field(default=0, description="Seed of the plans; each version adds its number.")
