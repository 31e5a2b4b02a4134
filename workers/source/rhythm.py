"""How much may be in flight, and what is to be given out next. Pure: a function of the log.

Invariants:
- training groups in flight (started − trained − dropped) ≤ (staleness bound + 1) × groups per step, and never more than the steps that
  are left can take; counted from the log, so the same after a restart; a dropped group frees its place;
- task and group numbers count from 0 without a gap;
- an evaluation round at a version is given out once.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from schemas.record import Record
from schemas.score import Score
from schemas.task import Purpose, Task
from schemas.training import Drops, Step, WeightVersion
from workers.source.settings import SourceSettings
from workers.source.task_set import Payload, TaskSet


@dataclass
class Rhythm:
    """What was started, what is decided, what is evaluated."""

    settings: SourceSettings
    tasks: TaskSet
    number: int = 0
    group: int = 0
    version: int = -1
    steps: int = 0
    started: int = 0
    running: set[int] = field(default_factory=set)
    decided: set[int] = field(default_factory=set)
    rounds: dict[int, set[int]] = field(default_factory=dict)
    scored: set[int] = field(default_factory=set)
    gave_up_waiting: bool = False
    _training_groups: set[int] = field(default_factory=set)

    def take(self, record: Record) -> None:
        """Fold a record of `tasks`, `training` or `scores`."""
        match record:
            case Task():
                self._task(record)
            case Step():
                self.steps = max(self.steps, record.step)
                self._decide(record.groups_trained)
                self._decide(record.groups_dropped)
            case Drops():
                self._decide(record.groups)
            case WeightVersion():
                self.version = max(self.version, record.version)
            case Score(purpose="eval", group=int(group)):
                self.scored.add(group)

    def in_flight(self) -> int:
        """Training groups that were started and not decided."""
        return len(self.running)

    def allowed(self) -> int:
        """How many training groups may be started now."""
        settings = self.settings
        left = (settings.steps - self.steps) * settings.groups_per_step
        bound = (settings.staleness_bound + 1) * settings.groups_per_step
        return max(0, min(bound, left) - self.in_flight())

    def waits_for_evaluation(self) -> bool:
        """Training tasks wait for the scores of the first round; once any was given out, none waits again."""
        waits = self.settings.evaluate_first and not self.gave_up_waiting and not self.started
        return waits and (not self.rounds or bool(self.unscored()))

    def unscored(self) -> set[int]:
        """The groups of the first round that have no score yet."""
        return self.rounds[min(self.rounds)] - self.scored

    def due_round(self) -> int | None:
        """The version to evaluate now, if any. Only the newest: older weights are loaded nowhere any more."""
        settings, last = self.settings, max(self.rounds, default=0)
        if self.version < 0:
            return None
        if settings.evaluate_first and not self.rounds:
            return self.version
        if settings.evaluate_last and self.steps >= settings.steps and last < self.version:
            return self.version
        is_due = settings.evaluate_every and self.version - last >= settings.evaluate_every and self.steps < settings.steps
        return self.version if is_due else None

    def next_tasks(self) -> list[Task]:
        """What to give out now; empty when nothing may be."""
        version = self.due_round()
        if version is not None:
            return list(self._round(version))
        if self.version < 0 or self.waits_for_evaluation():
            return []
        return [task for ahead in range(self.allowed()) for task in self._training_group(ahead)]

    def _decide(self, groups: Iterable[int]) -> None:
        self.decided.update(groups)
        self.running.difference_update(groups)

    def _task(self, task: Task) -> None:
        self.number = max(self.number, task.number + 1)
        self.group = max(self.group, task.group + 1)
        if task.evaluates is not None:
            self.rounds.setdefault(task.evaluates, set()).add(task.group)
        elif task.group not in self._training_groups:
            self._training_groups.add(task.group)
            self.started += 1
            self.running.update({task.group} - self.decided)

    def _round(self, version: int) -> Iterator[Task]:
        for index, payload in enumerate(self.tasks.evaluation()):
            yield self._member(index, index, 0, 1, payload, "eval", version)

    def _training_group(self, ahead: int) -> Iterator[Task]:
        payload, members = self.tasks.train(self.started + ahead), self.settings.members
        for member in range(members):
            yield self._member(ahead * members + member, ahead, member, members, payload, "train", None)

    def _member(
        self, number: int, group: int, member: int, members: int, payload: Payload, purpose: Purpose, evaluates: int | None
    ) -> Task:
        """`number` and `group` count from the next free ones. An evaluation's sampling seed is the prompt's, the same in every round."""
        place = f"evaluation {group}" if purpose == "eval" else f"task {self.number + number}"
        return Task(
            number=self.number + number, group=self.group + group, member=member, members=members, purpose=purpose, payload=payload,
            seed=random.Random(f"{self.settings.seed} {place}").getrandbits(31), evaluates=evaluates,
        )  # fmt: skip
