"""A trainer that only plans: the feed as the trainer runs it, without torch. It ends by itself after the last plan."""

from __future__ import annotations

import json
import time
from pathlib import Path

from anyio.abc import TaskStatus
from pydantic import BaseModel, ConfigDict, Field

from infra.bench.rule import NAME
from schemas.training import Consumed
from streams.log import Log
from streams.service import Finished, Role, Watch
from trainer.feed.plan import Batch
from trainer.feed.settings import FeedSettings
from trainer.reading import open_feed

HELD_BYTES = 256 << 20


class BenchFeedSettings(BaseModel):
    """How much is planned, and where the result goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sessions: int = Field(ge=1, description="The process ends when so many sessions are planned or dropped.")
    groups_per_step: int = Field(32, ge=1, description="Groups in a batch.")
    result_file: Path = Field(description="JSON: plans, planned and dropped sessions, and when the last was decided, seconds since 1970.")


def role(settings: BenchFeedSettings) -> Role:
    """The planning trainer with these settings."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> Finished:
        feed_settings = FeedSettings(groups_per_step=settings.groups_per_step, rules={NAME: 1.0})
        result = {"plans": 0, "planned": 0, "dropped": 0, "ended_at_s": 0.0}
        async with open_feed(log, feed_settings, HELD_BYTES, Consumed()) as feed:
            task_status.started()
            while result["planned"] + result["dropped"] < settings.sessions:
                decided = await feed.next(0)
                if isinstance(decided, Batch):
                    result["plans"] += 1
                    result["planned"] += len(decided.plan.places)
                result["dropped"] += len(decided.drops)
        result["ended_at_s"] = time.time()
        settings.result_file.write_text(json.dumps(result))
        return "finished"

    return run
