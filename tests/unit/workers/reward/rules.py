"""Reward rules for tests, loaded by name as any other."""

from __future__ import annotations

import anyio

from models.chat import Chat
from schemas.trajectory import Trajectory
from workers.reward.rule import Verdict, turns


class Letters:
    """The length of the last answer; raises without one; not finite for an answer of `q`."""

    name, version = "letters", 3

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        answer = turns(trajectory, chat)[-1].answer
        return Verdict(float("nan") if answer == "q" else len(answer), {"turns": len(trajectory.nodes)})


class Gate:
    """Slow: a verdict comes when the gate opens; for session 0 it comes at once. Counts how many wait."""

    name, version = "gate", 1
    waiting = 0
    most = 0
    opened = anyio.Event()

    async def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        if trajectory.session == 0:
            return Verdict(0.0)
        Gate.waiting += 1
        Gate.most = max(Gate.most, Gate.waiting)
        await Gate.opened.wait()
        Gate.waiting -= 1
        return Verdict(float(trajectory.session))


class NoRule:
    """Lacks nearly everything."""

    name = "none"
