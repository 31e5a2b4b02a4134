"""Trajectories × scores: the reward of a session, from the answers of the rules.

Invariants:
- the first `ok` answer of a rule counts; a `failed` one stands until an `ok` one replaces it or all rules have answered;
- a verdict, once given for a trajectory, depends on nothing that comes later;
- answers may come before their trajectory is read; none is kept for a trajectory after `forget`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from schemas.score import Score
from schemas.training import Place
from schemas.trajectory import Node, Trajectory
from trainer.paths import Path, paths_of

__all__ = ["REPORTED", "Item", "Key", "Rewards", "Verdict", "make_item"]

Key = tuple[int, int]
"""Partition and offset in `trajectories`."""

REPORTED = "reported"
"""The rule whose answer is what the agent's runner reported when it closed the session; nobody writes Scores for it."""

IDLE = "idle"
"""The outcome of a session that nobody closed."""

FAILED = "failed"
"""The outcome of a session whose runner gave up: what it holds says nothing about the model."""


@dataclass(slots=True, eq=False)
class Item:
    """An undecided training session: where it stands, its trainable paths, and its reward once all rules have answered.

    `group` is the number of its group of tasks (None: a session of its own), `member` its slot there, 0 where the agent's runner named
    none. Without paths `flaw` says why.
    """

    key: Key
    trajectory: Trajectory
    paths: list[Path]
    size_bytes: int
    group: int | None
    member: int
    flaw: str = ""
    reward: float | None = None

    @property
    def is_attempt(self) -> bool:
        """Whether an agent tried. A member's session that stayed empty until it was closed idle may be the double of a resent Open."""
        return self.group is None or not (self.trajectory.is_empty and self.trajectory.outcome == IDLE)

    @property
    def place(self) -> Place:
        """Where its trajectory stands, as records say it."""
        return Place(partition=self.key[0], offset=self.key[1], session=self.trajectory.session)


class Verdict(NamedTuple):
    """All rules have answered. `reward` is the weighted sum, None where a rule failed."""

    reward: float | None


class Rewards:
    """The answers for undecided trajectories. `rules` maps the name of each rule to its weight."""

    def __init__(self, rules: Mapping[str, float]) -> None:
        self._rules = dict(rules)
        self._answers: dict[Key, dict[str, float | None]] = {}

    def take(self, key: Key, score: Score) -> None:
        """One rule's answer."""
        self._answer(key, score.rule, score.value if score.status == "ok" else None)

    def report(self, key: Key, reward: float | None) -> None:
        """What the runner reported; nothing is a failed answer."""
        self._answer(key, REPORTED, reward)

    def verdict(self, key: Key) -> Verdict | None:
        """The reward, or None while a rule has not answered."""
        answers = self._answers.get(key)
        if answers is None or len(answers) < len(self._rules):
            return None
        values = [(weight, answers[rule]) for rule, weight in self._rules.items()]
        return Verdict(None if any(value is None for _, value in values) else sum(weight * (value or 0.0) for weight, value in values))

    def forget(self, key: Key) -> None:
        """The trajectory is decided."""
        self._answers.pop(key, None)

    def _answer(self, key: Key, rule: str, value: float | None) -> None:
        if rule not in self._rules:
            return
        answers = self._answers.setdefault(key, {})
        if answers.get(rule) is None:
            answers[rule] = value


def make_item(partition: int, offset: int, trajectory: Trajectory) -> Item:
    """A training session as the feed holds it, with or without a flaw."""
    paths, flaw = _paths(trajectory)
    return Item(
        key=(partition, offset), trajectory=trajectory, paths=paths, size_bytes=sum(map(_size_bytes, trajectory.nodes), _OBJECTS_BYTES),
        group=trajectory.group, member=trajectory.member or 0, flaw=flaw,
    )  # fmt: skip


def _paths(trajectory: Trajectory) -> tuple[list[Path], str]:
    """What may be trained, or why nothing may. Nodes that are no tree are a flaw: whoever wrote them cannot stop the trainer."""
    if trajectory.outcome == FAILED:
        return [], "failed"
    try:
        paths = [] if trajectory.is_empty else paths_of(trajectory)
    except ValueError:
        return [], "malformed"
    return paths, "" if paths else "empty"


_OBJECTS_BYTES = 2048
"""Python objects around the arrays of a short trajectory, roughly."""


def _size_bytes(node: Node) -> int:
    return len(node.tokens) + len(node.mask) + len(node.logprobs) + len(node.versions)
