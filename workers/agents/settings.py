"""Settings of an agent runner."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field


class AgentsSettings(BaseModel):
    """One process that runs agents. Start another one and it takes its share of the tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gateway_url: str = Field("http://127.0.0.1:8000", description="Base address of a gateway.")
    agent: str = Field("infra.demo.plugins:agent", description="Agent code, as module:attribute: `async def agent(episode) -> Outcome`.")
    second_agent: str = Field("", description="Another agent for a share of the tasks, for example the same one with another client.")
    second_share: float = Field(0.1, ge=0, le=1, description="Share of the tasks that the second agent gets.")
    concurrency: int = Field(64, ge=1, description="Episodes at a time.")
    attempts: int = Field(3, ge=1, description="Tries per task; each is a session of its own.")
    retry_s: float = Field(0.5, gt=0, description="Pause before another try.")
    patience_s: float = Field(60.0, ge=0, description="How long a gateway that is away is asked to close a session. Tasks wait on.")
    episode_s: float = Field(900.0, gt=0, description="Longest time of one try; the trainer's `group_deadline_s` is to be greater.")
    commit_s: float = Field(1.0, gt=0, description="Between two commits of what is done.")
    report_file: Path | None = Field(None, description="JSON file with counts of episodes and of errors that agents saw.")
