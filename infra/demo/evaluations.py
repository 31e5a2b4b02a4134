"""Evaluation rounds, joined from tasks, trajectories and scores, whatever comes first. Pure.

A round is what the source asked for at one version: the same held-out prompts, seeds and call path each time. Its reward is known when
every prompt has its first usable session scored.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from schemas.arrays import unpack_i4
from schemas.score import Score
from schemas.task import Task
from schemas.trajectory import Trajectory

Where = tuple[int, int]
"""(partition, offset) of a trajectory."""


class Answered(NamedTuple):
    """One evaluated session: the task's payload, the token ids sampled last, its reward."""

    payload: dict[str, Any]
    tokens: list[int]
    reward: float


@dataclass
class Evaluations:
    """All rounds so far."""

    _groups: dict[int, set[int]] = field(default_factory=dict)
    _sessions: dict[int, list[tuple[Where, Trajectory]]] = field(default_factory=dict)
    _rewards: dict[Where, float] = field(default_factory=dict)

    def take_task(self, task: Task) -> None:
        """A prompt of a round."""
        if task.evaluates is not None:
            self._groups.setdefault(task.evaluates, set()).add(task.group)

    def take_trajectory(self, where: Where, trajectory: Trajectory) -> None:
        """A session, evaluated or not."""
        if trajectory.purpose == "eval" and trajectory.group is not None and not trajectory.is_empty:
            self._sessions.setdefault(trajectory.group, []).append((where, trajectory))

    def take_score(self, partition: int, score: Score) -> None:
        """A reward; the first `ok` one of a session counts."""
        if score.status == "ok":
            self._rewards.setdefault((partition, score.trajectory), score.value)

    def versions(self) -> list[int]:
        """The versions at which rounds were asked for, in order."""
        return sorted(self._groups)

    def answers(self, version: int) -> list[Answered]:
        """What a round has so far, by group."""
        found = (self._answer(group) for group in sorted(self._groups.get(version, ())))
        return [answer for answer in found if answer is not None]

    def reward(self, version: int) -> float | None:
        """The mean reward of a round; None until it is complete."""
        answers = self.answers(version)
        if not answers or len(answers) < len(self._groups[version]):
            return None
        return sum(answer.reward for answer in answers) / len(answers)

    def curve(self) -> list[tuple[int, float]]:
        """(version, held-out reward) of the complete rounds."""
        rewards = ((version, self.reward(version)) for version in self.versions())
        return [(version, reward) for version, reward in rewards if reward is not None]

    def _answer(self, group: int) -> Answered | None:
        for where, trajectory in self._sessions.get(group, []):
            if where in self._rewards:
                last = trajectory.nodes[-1]
                return Answered(trajectory.payload, unpack_i4(last.tokens)[last.prompt :], self._rewards[where])
        return None
