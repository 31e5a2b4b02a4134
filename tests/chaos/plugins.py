"""Plug-ins of the processes under fault, where those of the flow tests would cost time that no row needs."""

from __future__ import annotations

import time

from models.chat import Chat
from schemas.trajectory import Trajectory
from tests.flow.plugins import CountRule
from workers.reward.rule import Verdict


class QuickCountRule(CountRule):
    """The number of tokens that may be trained, at once."""

    async def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        return Verdict(float(sum(sum(node.mask) for node in trajectory.nodes)))


class HangingRule:
    """As `CountRule`, but for sessions whose payload says `hangs`: of these it never says anything, and cannot be interrupted."""

    name, version = "count", 1

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        while trajectory.payload.get("hangs"):
            time.sleep(1.0)
        return Verdict(float(sum(sum(node.mask) for node in trajectory.nodes)))
