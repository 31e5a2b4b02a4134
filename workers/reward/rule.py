"""The contract of a reward rule, and what a rule gets to see of a trajectory: turns of text. Pure.

A rule is a class or function without arguments that makes an object with `name`, `version` and `score`; the role loads it by
`module:attribute`. `score` may be a plain function (fast: it runs between two reads) or a coroutine function (slow: many run at once).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from models.chat import Chat
from schemas.arrays import unpack_i4
from schemas.errors import UsageError
from schemas.score import Score
from schemas.trajectory import Node, NodeEnd, Trajectory
from workers.plugin import load_plugin, storable

__all__ = ["RewardRule", "Turn", "Verdict", "checked", "failure", "is_slow", "load_rule", "score_of", "turns"]

MOST_NAMES = 64 << 10
"""Characters that the names of a verdict's components may have together."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a trajectory was worth. `components` are for people and for later analyses.

    :raises ValueError: the value or a component is not finite.
    """

    value: float
    components: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        wrong = {name: value for name, value in {"value": self.value, **self.components}.items() if not math.isfinite(value)}
        if wrong:
            raise ValueError(f"not finite: {wrong}")


class RewardRule(Protocol):
    """Says what a trajectory was worth; the same trajectory always gets the same verdict. A new meaning is a new `version`."""

    @property
    def name(self) -> str:
        """The rule's name: the first `ok` Score of a (trajectory, rule) counts."""
        ...

    @property
    def version(self) -> int:
        """Grows when the rule's meaning changes."""
        ...

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict | Awaitable[Verdict]:
        """The verdict. Whatever it raises becomes a failed Score with the reason, and the trajectory is never trained."""
        ...


class Turn(NamedTuple):
    """One request: the text that is new in its prompt, and the answer. It goes on from the turn at index `parent` (−1: from none)."""

    parent: int
    prompt: str
    answer: str
    end: NodeEnd


def turns(trajectory: Trajectory, chat: Chat) -> list[Turn]:
    """The trajectory's nodes as text, in the order of their requests. Special tokens leave no text."""
    return [_turn(node, chat) for node in trajectory.nodes]


def load_rule(path: str) -> RewardRule:
    """The rule that `module:attribute` makes.

    :raises UsageError: it cannot be loaded, or what it makes is no rule.
    """
    rule = load_plugin(path)()
    missing = [name for name in ("name", "version", "score") if not hasattr(rule, name)]
    if missing:
        raise UsageError(f"plug-in {path!r} is no reward rule: it has no {', '.join(missing)}")
    if not isinstance(rule.name, str) or not isinstance(rule.version, int) or storable(rule.name) != rule.name:
        raise UsageError(f"plug-in {path!r}: the name of a reward rule is text, its version a whole number")
    return rule  # type: ignore[no-any-return]


def is_slow(rule: RewardRule) -> bool:
    """Whether its `score` is a coroutine function."""
    return inspect.iscoroutinefunction(rule.score)


def checked(answer: object) -> Verdict:
    """What a rule answered, in plain numbers and text: scalars of numpy or torch become floats.

    :raises TypeError: it is no Verdict, or holds what is no number.
    :raises ValueError: a number is not finite, or the names of its components are too long.
    """
    if not isinstance(answer, Verdict):
        raise TypeError(f"the rule answered {type(answer).__name__}, not a Verdict")
    components = {storable(str(name)): float(value) for name, value in answer.components.items()}
    if sum(map(len, components)) > MOST_NAMES:
        raise ValueError(f"the names of {len(components)} components have more than {MOST_NAMES} characters")
    return Verdict(float(answer.value), components)


def score_of(rule: RewardRule, offset: int, trajectory: Trajectory, verdict: Verdict) -> Score:
    """The record of a verdict for the trajectory at `offset`."""
    return _score(rule, offset, trajectory, verdict.value, components=verdict.components)


def failure(rule: RewardRule, offset: int, trajectory: Trajectory, why: str) -> Score:
    """The record of a rule that gave no verdict: no value, and why."""
    return _score(rule, offset, trajectory, 0.0, status="failed", detail=why)


def _score(rule: RewardRule, offset: int, trajectory: Trajectory, value: float, **more: Any) -> Score:
    return Score(
        trajectory=offset, session=trajectory.session, purpose=trajectory.purpose, group=trajectory.group, rule=rule.name,
        rule_version=rule.version, value=value, **more,
    )


def _turn(node: Node, chat: Chat) -> Turn:
    tokens = unpack_i4(node.tokens)
    return Turn(node.parent, chat.decode(tokens[: node.prompt]), chat.decode(tokens[node.prompt :]), node.end)
