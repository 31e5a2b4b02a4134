"""Settings of the reward role."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class RewardSettings(BaseModel):
    """Which rule scores, and how many of its slow verdicts are sought at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rule: str = Field("infra.demo.plugins:NextLetterRule", description="The reward rule, as module:attribute.")
    model_dir: Path = Field(Path("runs/default/model"), description="Model folder: its tokenizer turns tokens into text for the rule.")
    concurrency: int = Field(64, ge=1, description="Verdicts sought at once, where the rule is a coroutine function.")
    verdict_s: float = Field(300.0, gt=0, description="How long a verdict may take; after it the Score is a failed one.")
    commit_s: float = Field(1.0, gt=0, description="Between two commits of what is done.")
