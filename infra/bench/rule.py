"""The reward rule of the trajectory benchmark: as much work as a rule over text has, and rewards that differ within every group."""

from __future__ import annotations

from models.chat import Chat
from schemas.trajectory import Trajectory
from workers.reward.rule import Verdict, turns

NAME = "parity"


class ParityRule:
    """1 where the last number of the answer is odd."""

    name = NAME
    version = 1

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        """Read the answer as text, as rules do."""
        answer = turns(trajectory, chat)[-1].answer
        return Verdict(float(int(answer.split()[-1]) % 2))
