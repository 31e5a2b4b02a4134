"""Plug-ins of the processes under test: a reward that counts, a task set without an end, an agent that asks for one answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio

from models.chat import Chat
from schemas.trajectory import Trajectory
from workers.agents.episode import Episode, Outcome
from workers.reward.rule import Verdict

EVALUATIONS = 4
LEAST_TOKENS = 20
THINKS_S = 0.8


class CountRule:
    """The number of tokens that may be trained. It takes longer than the role waits between two commits."""

    name = "count"
    version = 1

    async def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        await anyio.sleep(THINKS_S)
        return Verdict(float(sum(sum(node.mask) for node in trajectory.nodes)))


class Numbers:
    """Payload n is n."""

    def train(self, index: int) -> dict[str, Any]:
        return {"n": index}

    def evaluation(self) -> Sequence[dict[str, Any]]:
        return [{"n": -number} for number in range(1, EVALUATIONS + 1)]


def tasks(seed: int) -> Numbers:
    return Numbers()


async def agent(episode: Episode) -> Outcome:
    """One answer, longer for higher members: so that the sessions of a group differ in their reward."""
    await episode.chat([{"role": "user", "content": str(episode.payload["n"])}], max_tokens=LEAST_TOKENS + 5 * episode.task.member)
    return Outcome()
