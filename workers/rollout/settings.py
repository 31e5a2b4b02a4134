"""Settings of a rollout worker."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from schemas.node import Tag


class RolloutSettings(BaseModel):
    """One node that owns partitions and generates."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: str = Field("rollout-0", description="Name of this node; unique, the same after a restart.")
    tags: list[Tag] = Field(["rollout"], description="With `train`, too, it sleeps while the scheduler lets a trainer step on its node.")
    engine: Literal["torch", "paced"] = Field("torch", description="`torch` runs the model here; `paced` emits known tokens at a set rate.")
    model_dir: Path = Field(Path("runs/default/model"), description="Model folder: config.json and tokenizer. Weights come from the log.")
    capacity: float = Field(1.0, gt=0, description="Share of the partitions, relative to other nodes.")
    batch: int = Field(32, ge=1, description="Requests in the engine's batch; the others wait.")
    stream_tokens: int = Field(4, ge=1, description="Tokens per span while someone streams.")
    flush_s: float = Field(0.5, gt=0, description="Longest time that sampled tokens wait for their span.")
    report_s: float = Field(1.0, gt=0, description="Period of NodeStatus.")
    commit_s: float = Field(2.0, gt=0, description="Period of Position commits.")
    recommit_s: float = Field(24 * 3600, gt=0, description="Positions that did not move are committed again: old commits expire.")
    snapshots: str = Field("runs/default/snapshots", description="Folder or URL (fsspec) that all roles share; empty: no snapshots.")
    snapshot_bytes: int = Field(4 << 20, ge=1, description="A snapshot is kept where it saves a new owner so many bytes of reading.")
    stall_s: float = Field(10.0, gt=0, description="An engine with work and no new token for so long is not reported as alive any more.")
    paced_tokens_per_s: float = Field(100.0, gt=0, description="Rate of the paced engine, per request.")
    paced_first_token_s: float = Field(0.0, ge=0, description="Delay of the paced engine's first token.")

    @field_validator("tags")
    @classmethod
    def _generates(cls, tags: list[Tag]) -> list[Tag]:
        if "rollout" not in tags:
            raise ValueError("a rollout worker is tagged rollout: a node that only trains needs none")
        return tags
