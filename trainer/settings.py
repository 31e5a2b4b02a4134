"""Settings of the trainer. No torch: what only torch's modules can check is checked when the trainer starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from trainer.feed.settings import FeedSettings

__all__ = ["TrainerSettings"]


class TrainerSettings(BaseModel):
    """One trainer of one run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field("default", description="Name of the run, for people.")
    node: str = Field("trainer-0", description="Name of this node; unique, the same after a restart.")
    hosts: list[str] = Field(
        [], description="Rollout nodes that this process steps on: it waits until the scheduler gives one of them the role `train`. "
        "Empty: a machine of its own.",
    )  # fmt: skip
    steps: int = Field(200, ge=0, description="The trainer ends, with exit code 0, when the log holds so many Steps.")
    model_dir: Path = Field(Path("runs/default/model"), description="Model folder: weights of version 0, config and tokenizer.")
    weights_dir: Path = Field(Path("runs/default/weights"), description="Published weights; workers must be able to read it.")
    keep_versions: int = Field(64, ge=0, description="So many newest versions keep their files, and those of checkpoints; 0: all do.")
    checkpoint_dir: Path = Field(Path("runs/default/checkpoints"), description="Weights with optimizer state, for restarts.")
    checkpoints_kept: int = Field(2, ge=1, description="Older checkpoints are removed.")
    recovery_s: float = Field(20.0, ge=0, description="A checkpoint is written when to train again since the last would take so long.")
    threads: int = Field(1, ge=1, description="Threads of torch; part of the numerics key.")
    loss: str = Field("clipped", description="Loss (trainer.losses).")
    loss_settings: dict[str, Any] = Field({}, description="Settings of that loss.")
    optimizer: dict[str, Any] = Field({}, description="Settings of AdamW (trainer.learner.OptimizerSettings).")
    feed: FeedSettings = Field(FeedSettings(), description="How trajectories become batches.")
    held_bytes: int = Field(256 << 20, gt=0, description="While a batch waits, reading stops at so many bytes of undecided trajectories.")
    report_s: float = Field(1.0, gt=0, description="Period of NodeStatus.")
