"""Which groups the trainer has decided: their tasks need no episode any more.

Invariant: the newest Step or Drops tells all of it, so nothing else of `training` is kept; evaluation tasks are never decided by a trainer.
"""

from __future__ import annotations

from schemas.record import Record
from schemas.task import Task
from schemas.training import Consumed, Drops, Step
from streams.table import Table

UPDATE_S = 5.0

__all__ = ["Decided"]


class Decided:
    """Made with the table of `training`, caught up."""

    def __init__(self, training: Table) -> None:
        self._training = training
        self._below, self._groups = 0, frozenset[int]()
        for entry in sorted(training.rows.values(), key=lambda entry: entry.offset):
            self._take(entry.record)

    def covers(self, task: Task) -> bool:
        """Whether nothing that an episode of this task brings will be trained."""
        return task.purpose == "train" and (task.group < self._below or task.group in self._groups)

    async def follow(self) -> None:
        """Take in what the trainer decides, for ever."""
        while True:
            for entry in await self._training.update(timeout_s=UPDATE_S):
                self._take(entry.record)

    def _take(self, record: Record) -> None:
        if isinstance(record, Step | Drops):
            consumed: Consumed = record.consumed
            self._below, self._groups = consumed.groups_below, frozenset(consumed.groups)
