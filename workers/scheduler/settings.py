"""Settings of the scheduler."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from workers.scheduler.decide import DEAD_TICKS


class SchedulerSettings(BaseModel):
    """How fast the scheduler's clock runs, when a node counts as dead by it, and what bounds the choice of who trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tick_s: float = Field(1.0, gt=0, description="Least time between two Ticks; nodes report about as often.")
    dead_ticks: int = Field(DEAD_TICKS, ge=2, description="A node is dead when so many Ticks of this scheduler follow its last status.")
    staleness_bound: int = Field(2, ge=0, description="The source's setting of this name: how many steps generation may run ahead.")
    least_train_nodes: int = Field(1, ge=0, description="A step runs on at least so many of the nodes tagged both ways.")
    most_train_nodes: int = Field(0, ge=0, description="And on at most so many; 0: no limit.")
    margin: float = Field(0.05, ge=0, lt=1, description="Who trains changes only for a step that is shorter by this share.")
