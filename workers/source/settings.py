"""Settings of the source."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class SourceSettings(BaseModel):
    """Where tasks come from, and the rhythm in which they are given out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tasks: str = Field("infra.demo.plugins:tasks", description="Task set, as module:attribute: `def tasks(seed: int) -> TaskSet`.")
    seed: int = Field(0, description="Seed of the task set and of the sampling seeds.")
    members: int = Field(8, ge=1, description="Sessions per training group.")
    groups_per_step: int = Field(4, ge=1, description="Groups that a step takes; the trainer's setting of this name.")
    staleness_bound: int = Field(2, ge=0, description="Groups in flight ≤ (this + 1) × groups_per_step.")
    steps: int = Field(200, ge=0, description="No more training tasks once so many Steps stand; 0: only evaluations.")
    evaluate_first: bool = Field(True, description="Evaluate version 0, and give out training tasks when its scores are in.")
    evaluate_every: int = Field(25, ge=0, description="Versions between two evaluations; 0: none in between.")
    evaluate_last: bool = Field(True, description="Evaluate once more after the last step.")
    evaluation_s: float = Field(300.0, gt=0, description="How long training waits for the first evaluation.")
