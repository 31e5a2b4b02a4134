"""Reward rules for tests, loaded by name as any other."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import anyio
import numpy as np

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


class Unnamed:
    """A version that is none."""

    name, version, score = "unnamed", "1.0", None


class Unprintable(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Whatever:
    """Does what the payload says."""

    name, version = "whatever", 1

    def score(self, trajectory: Trajectory, chat: Chat) -> Any:
        match trajectory.payload["act"]:
            case "cancels":
                raise asyncio.CancelledError
            case "exits":
                sys.exit(0)
            case "interrupts":
                raise KeyboardInterrupt
            case "half a character":
                raise ValueError("bad \ud800")
            case "unprintable":
                raise Unprintable
            case act:
                return ANSWERS[act]


class SlowWhatever(Whatever):
    """The same by a coroutine."""

    async def score(self, trajectory: Trajectory, chat: Chat) -> Any:
        return super().score(trajectory, chat)


ANSWERS: dict[str, Any] = {
    "answers nothing": None,
    "no number": Verdict(1.0),
    "long names": Verdict(1.0, {"x" * 70_000: 1.0}),
    "huge": Verdict(1.0),
    "numpy": Verdict(np.float32(0.5), {"half \ud800": np.float64(0.25)}),  # type: ignore[arg-type]
}
object.__setattr__(ANSWERS["no number"], "value", "much")
object.__setattr__(ANSWERS["huge"], "value", 10**400)
