"""Settings of the scheduler."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from workers.scheduler.decide import DEAD_TICKS


class SchedulerSettings(BaseModel):
    """How fast the scheduler's clock runs, and when a node counts as dead by it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tick_s: float = Field(1.0, gt=0, description="Least time between two Ticks; nodes report about as often.")
    dead_ticks: int = Field(DEAD_TICKS, ge=2, description="A node is dead when so many Ticks of this scheduler follow its last status.")
