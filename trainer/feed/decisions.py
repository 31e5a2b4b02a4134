"""Decisions: each session trained or dropped once, each group ended once, and the Consumed that says so (R6).

Invariants:
- sessions taken = trained + dropped + undecided; groups started = ended + running (what is dropped frees its place in flight);
- a Consumed holds exactly the decisions that were handed out before it was asked for: sessions whose drop still waits for a record of
  its own are undecided there, and a restart reads them again;
- no record holds more than DROPS_PER_RECORD drops.

Decisions live here until they stand in the log. An object made from the last Consumed there reads the others again.
"""

from __future__ import annotations

from schemas.errors import SeamlessFlowError
from schemas.score import Score
from schemas.task import Task
from schemas.training import Consumed, Dropped, Place, Watermark
from schemas.trajectory import Trajectory
from trainer.feed.watermarks import DecidedGroups, PartitionProgress, TaskProgress

__all__ = ["DROPS_PER_RECORD", "Decisions"]

DROPS_PER_RECORD = 2000
"""About 100 KB of a record: a backlog of sessions that end at once must not make one that no producer takes."""


class Decisions:
    """Over all partitions. `taken`, `trained`, `dropped`, `started` and `ended` count what this object saw since it was made."""

    def __init__(self, consumed: Consumed) -> None:
        self.groups = DecidedGroups(consumed.groups_below, consumed.groups)
        self._partitions = {mark.partition: PartitionProgress(mark) for mark in consumed.watermarks}
        self._tasks = {partition: TaskProgress(offset) for partition, offset in consumed.tasks.items()}
        self._drops: list[Dropped] = []
        self._groups_dropped: list[int] = []
        self._waiting_since: float | None = None
        self.taken = self.trained = self.dropped = 0
        self.started = self.ended = 0

    def take_task(self, partition: int, offset: int, task: Task) -> bool:
        """Read a Task. False: it was read before, or its group is decided."""
        progress = self._tasks.setdefault(partition, TaskProgress())
        return progress.take(offset, task.group) and task.group not in self.groups

    def take(self, partition: int, offset: int, trajectory: Trajectory) -> bool:
        """Read a trajectory. False: it was read or decided before, repeats a session, or never enters training (`eval`)."""
        progress = self._progress(partition)
        if not progress.take(offset, trajectory.close):
            return False
        if trajectory.purpose == "eval":
            progress.decide(offset)
            return False
        self.taken += 1
        return True

    def take_score(self, partition: int, offset: int, score: Score) -> bool:
        """Read a score. False: it was read before, or its trajectory is decided."""
        return self._progress(partition).take_score(offset, score.trajectory)

    def is_decided(self, partition: int, trajectory: int) -> bool:
        """Whether nothing can change for the trajectory at this offset."""
        return self._progress(partition).is_decided(trajectory)

    def train(self, place: Place) -> None:
        """The session is in the batch that is being made."""
        self._progress(place.partition).decide(place.offset)
        self.trained += 1

    def drop(self, place: Place, reason: str, group: int | None, now: float) -> None:
        """The session will never be trained."""
        self._progress(place.partition).drop(place.offset)
        self._drops.append(Dropped(place=place, reason=reason, group=group))
        self.dropped += 1
        self._wait(now)

    def start_group(self) -> None:
        """A group of training tasks is heard of: it runs."""
        self.started += 1

    def drop_group(self, number: int, now: float) -> None:
        """A running group ends without being trained."""
        self._groups_dropped.append(number)
        self.end_group(number)
        self._wait(now)

    def end_group(self, number: int) -> None:
        """A running group ends."""
        self.groups.add(number)
        self.ended += 1

    def are_drops_due(self, now: float, deadline_s: float, *, at_once: bool) -> bool:
        """Whether there are dropped sessions or groups, and they fill a record, have waited for `deadline_s`, or must go `at_once`."""
        if self._waiting_since is None:
            return False
        return at_once or len(self._drops) >= DROPS_PER_RECORD or now - self._waiting_since >= deadline_s

    def hand_out(self) -> tuple[list[Dropped], list[int]]:
        """Dropped sessions and groups for the record that is being made; drops beyond DROPS_PER_RECORD wait for the next.

        All groups, because the source keeps only a few in flight.
        """
        drops, self._drops = self._drops[:DROPS_PER_RECORD], self._drops[DROPS_PER_RECORD:]
        for drop in drops:
            self._progress(drop.place.partition).hand_out(drop.place.offset)
        groups, self._groups_dropped = self._groups_dropped, []
        if not self._drops:
            self._waiting_since = None
        return drops, groups

    def consumed(self) -> Consumed:
        """All decisions handed out so far, as a restart needs them."""
        marks = [progress.watermark() for _, progress in sorted(self._partitions.items())]
        return Consumed(
            watermarks=[mark for mark in marks if mark != Watermark(partition=mark.partition)],
            groups_below=self.groups.below,
            groups=sorted(self.groups.above),
            tasks={partition: progress.watermark(self.groups) for partition, progress in sorted(self._tasks.items())},
        )

    def require_balance(self, *, held: int, running: int) -> None:
        """Compare with what the feed holds: `held` sessions and `running` groups.

        :raises SeamlessFlowError: something is neither running nor decided, or both: a defect of this software.
        """
        undecided = sum(len(progress.undecided) for progress in self._partitions.values())
        sessions = f"{self.taken} sessions taken, {self.trained} trained, {self.dropped} dropped, {undecided} undecided, {held} held"
        groups = f"{self.started} groups started, {self.ended} ended, {running} running"
        if self.taken != self.trained + self.dropped + undecided or undecided != held or self.started != self.ended + running:
            raise SeamlessFlowError(f"the feed's books do not balance: {sessions}; {groups}: keep the log, and report it")

    def _progress(self, partition: int) -> PartitionProgress:
        if partition not in self._partitions:
            self._partitions[partition] = PartitionProgress(Watermark(partition=partition))
        return self._partitions[partition]

    def _wait(self, now: float) -> None:
        if self._waiting_since is None:
            self._waiting_since = now
