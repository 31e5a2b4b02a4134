"""Settings of the assembler."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

HALF_A_WEEK_S = 3.5 * 24 * 3600
DAY_S = 24 * 3600


class AssemblerSettings(BaseModel):
    """When sessions are closed for their agents, and how often Positions are committed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    idle_s: float = Field(300.0, gt=0, description="A session in which nothing happened for so long is closed, before its group ends.")
    max_age_s: float = Field(HALF_A_WEEK_S, gt=0, description="An older session is closed, whatever it does: half of the audit retention.")
    commit_s: float = Field(1.0, gt=0, description="Between two commits of Positions, and two looks for idle sessions.")
    recommit_s: float = Field(DAY_S, gt=0, description="Positions that did not move are committed again: Kafka lets old commits expire.")
    look_s: float = Field(600.0, gt=0, description="Between two looks whether retention comes near to a Position.")
    snapshots: str = Field("runs/default/snapshots", description="Folder or URL (fsspec) that all roles share; empty: no snapshots.")
    snapshot_bytes: int = Field(4 << 20, ge=1, description="A snapshot is kept where it saves a new assembler so many bytes of reading.")
