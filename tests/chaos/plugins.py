"""Plug-ins of the processes under fault, where those of the flow tests would cost time that no row needs."""

from __future__ import annotations

from models.chat import Chat
from schemas.trajectory import Trajectory
from tests.flow.plugins import CountRule
from workers.reward.rule import Verdict


class QuickCountRule(CountRule):
    """The number of tokens that may be trained, at once."""

    async def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        return Verdict(float(sum(sum(node.mask) for node in trajectory.nodes)))
