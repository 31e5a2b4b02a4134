"""Groups and their sessions: drawn from a seed and their place alone, so every policy meets the same ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from random import Random

from infra.simulate.workload import Lengths, SessionPart

__all__ = ["Group", "Session", "draw", "draw_group"]

P99 = 2.3263478740408408
"""The 99 % quantile of the normal distribution."""


@dataclass(eq=False)
class Group:
    """Sessions that are compared. `left` of them have not ended."""

    number: int
    left: int
    started_s: float
    sessions: list[Session] = field(default_factory=list)


@dataclass(eq=False)
class Session:
    """One episode: `turns` requests with tools between them.

    `tokens` by version, in the order in which they were sampled. `left` tokens of this turn's request are to be sampled, `fresh` tokens of
    its prompt are new to any engine, `context` is all before them. `cache` names the engine that has the context (and its flush).
    """

    group: Group
    outputs: tuple[int, ...]
    tools_s: tuple[float, ...]
    prompt_tokens: int
    tool_tokens: int
    partition: int = -1
    turn: int = 0
    left: float = 0.0
    fresh: float = 0.0
    context: float = 0.0
    cache: tuple[int, int] = (-1, -1)
    tokens: list[tuple[int, float]] = field(default_factory=list)
    mark: float = 0.0

    def begin(self) -> None:
        """From the first turn, with nothing sampled."""
        self.turn, self.context, self.cache, self.tokens = 0, 0.0, (-1, -1), []
        self._ask(self.prompt_tokens)

    def proceed(self) -> bool:
        """To the next turn. False: that was the last one."""
        self.turn += 1
        if self.turn == len(self.outputs):
            return False
        self._ask(self.tool_tokens)
        return True

    def sampled(self, version: int, tokens: float) -> None:
        """So many more tokens under one version."""
        if tokens <= 0:
            return
        self.left -= tokens
        self.context += tokens
        if self.tokens and self.tokens[-1][0] == version:
            self.tokens[-1] = (version, self.tokens[-1][1] + tokens)
        else:
            self.tokens.append((version, tokens))

    def lose(self, tokens: float) -> float:
        """The last tokens of this turn are to be sampled again; answers how many."""
        lost = min(tokens, self.outputs[self.turn] - self.left)
        self.left, self.context = self.left + lost, self.context - lost
        rest = lost
        while rest > 0 and self.tokens:
            version, count = self.tokens.pop()
            if count > rest:
                self.tokens.append((version, count - rest))
            rest -= count
        return lost

    def _ask(self, fresh: int) -> None:
        self.fresh, self.left = float(fresh), float(self.outputs[self.turn])


def draw(lengths: Lengths, chance: Random) -> float:
    """One length."""
    return lengths.median * math.exp(chance.gauss(0.0, 1.0) * math.log(lengths.p99_ratio) / P99)


def draw_group(part: SessionPart, seed: int, number: int, now_s: float) -> Group:
    """A group and all its sessions."""
    chance = Random(f"{seed}/{number}")
    group = Group(number, part.members, now_s)
    group.sessions = [_draw_session(part, group, chance) for _ in range(part.members)]
    return group


def _draw_session(part: SessionPart, group: Group, chance: Random) -> Session:
    turns = chance.choice(part.turns)
    each = max(1, round(draw(part.output_tokens, chance) / turns))
    tools_s = tuple(draw(part.tool_s, chance) for _ in range(turns - 1))
    return Session(group, (each,) * turns, tools_s, part.prompt_tokens, part.tool_tokens)
