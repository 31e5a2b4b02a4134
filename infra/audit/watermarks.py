"""R6: Consumed, the trainer's memory across restarts, is true in every Step and Drops record.

If a watermark passed an undecided trajectory, a restart would lose it; if a decided one were neither below nor listed, a restart would
train it again; if `close` were too low, a restart would take a duplicate for a new trajectory.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from typing import TypeVar

from infra.audit.entry import Entry, Fields
from infra.audit.findings import Findings
from infra.audit.scores import FirstScores
from infra.audit.trajectories import PartitionTrajectories, Trajectories

NOTHING: Fields = {"trajectory": 0, "close": -1, "decided": [], "score": 0}


@dataclass(slots=True)
class PartitionDecisions:
    """Training trajectories of one partition by offset, in order. `last_scores`: (last of its first `ok` Scores, offset), undecided."""

    undecided: list[int]
    last_scores: list[tuple[int, int]]
    decided: list[int] = field(default_factory=list)

    @classmethod
    def before(cls, read: PartitionTrajectories, scores: dict[int, list[int]]) -> PartitionDecisions:
        """Nothing decided yet."""
        undecided = sorted(offset for offset, kept in read.counted.items() if kept.purpose == "train")
        return cls(undecided, sorted((max(scores[offset]), offset) for offset in undecided if scores.get(offset)))

    def decide(self, offset: int, scores: list[int]) -> None:
        """The trajectory at `offset` entered a Step or Drops record."""
        insort(self.decided, offset)
        _take(self.undecided, offset)
        if scores:
            _take(self.last_scores, (max(scores), offset))


Item = TypeVar("Item", int, tuple[int, int])


def _take(items: list[Item], item: Item) -> None:
    at = bisect_left(items, item)
    if items[at:at + 1] == [item]:
        del items[at]


@dataclass(slots=True)
class Consumption:
    """What was decided so far, and what Consumed says of it. `train_groups` are the groups of training Tasks, where known."""

    trajectories: Trajectories
    scores: FirstScores
    findings: Findings
    train_groups: frozenset[int] = frozenset()
    dropped_groups: set[int] = field(default_factory=set)
    partitions: dict[int, PartitionDecisions] = field(init=False)
    groups: set[int] = field(default_factory=set)
    before: dict[int, Fields] = field(default_factory=dict)
    groups_below: int = 0
    tasks: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.partitions = {
            partition: PartitionDecisions.before(read, self.scores.get(partition, {})) for partition, read in self.trajectories.items()
        }

    def decide(self, partition: int, trajectory: int) -> None:
        """The trajectory at this offset entered a Step or Drops record."""
        scores = self.scores.get(partition, {}).get(trajectory, [])
        self._decisions(partition).decide(trajectory, scores)

    def undecided(self) -> int:
        """Training trajectories that no record decided yet."""
        return sum(len(decisions.undecided) for decisions in self.partitions.values())

    def _decisions(self, partition: int) -> PartitionDecisions:
        return self.partitions.setdefault(partition, PartitionDecisions([], []))

    def check(self, entry: Entry) -> None:
        """Check the Consumed of one record, whose own decisions were told before."""
        said = {mark["partition"]: mark for mark in entry["consumed"]["watermarks"]}
        for partition in sorted({*said, *self.before, *self.partitions}):
            mark = said.get(partition, NOTHING)
            self._forward(entry, partition, mark)
            self._true(entry, partition, mark)
            self.before[partition] = mark
        self._groups(entry)
        self._tasks(entry)

    def _forward(self, entry: Entry, partition: int, mark: Fields) -> None:
        before = self.before.get(partition, NOTHING)
        for name in ("trajectory", "close", "score"):
            forward = mark[name] >= before[name]
            self.findings.need(forward, "R6", entry, "%s watermark of partition %d: %d after %d", name, partition, mark[name], before[name])

    def _true(self, entry: Entry, partition: int, mark: Fields) -> None:
        need, decisions, below = self.findings.need, self._decisions(partition), mark["trajectory"]
        said_above = set(mark["decided"])
        skipped = decisions.undecided[:bisect_left(decisions.undecided, below)] + sorted(said_above & set(decisions.undecided))
        need(not skipped, "R6", entry, "partition %d: %s are undecided, Consumed says decided (watermark %d)", partition, skipped, below)
        missing = [offset for offset in decisions.decided[bisect_left(decisions.decided, below):] if offset not in said_above]
        need(not missing, "R6", entry, "partition %d: %s are decided, Consumed does not say so (watermark %d)", partition, missing, below)
        passed = [offset for _, offset in decisions.last_scores[:bisect_left(decisions.last_scores, (mark["score"], -1))]]
        text = "partition %d: score watermark %d passes the scores of undecided %s"
        need(not passed, "R6", entry, text, partition, mark["score"], passed)
        self._close(entry, partition, mark)

    def _close(self, entry: Entry, partition: int, mark: Fields) -> None:
        need, read, below = self.findings.need, self.trajectories[partition], mark["trajectory"]
        end = max(read.begin, read.end)
        need(below <= end, "R6", entry, "partition %d: watermark %d, trajectories end at %d", partition, below, end)
        if below >= read.begin:
            expected = read.close_below(below)
            known = expected if read.begin == 0 else max(expected, mark["close"])  # retention may have taken the greatest
            text = "partition %d: close %d, the greatest below is %d"
            need(mark["close"] == known, "R6", entry, text, partition, mark["close"], expected)

    def _groups(self, entry: Entry) -> None:
        need, below, listed = self.findings.need, entry["consumed"]["groups_below"], set(entry["consumed"]["groups"])
        need(below >= self.groups_below, "R6", entry, "groups_below %d after %d", below, self.groups_below)
        missing = sorted(group for group in self.groups if group >= below and group not in listed)
        need(not missing, "R6", entry, "groups %s are decided, Consumed does not say so (below %d)", missing, below)
        known = self.groups | self.dropped_groups
        open_ones = sorted(group for group in self.train_groups - known if group < below or group in listed)
        need(not open_ones, "R6", entry, "groups %s are undecided, Consumed says decided (below %d)", open_ones, below)
        self.groups_below = below

    def _tasks(self, entry: Entry) -> None:
        for partition, offset in entry["consumed"]["tasks"].items():
            before = self.tasks.get(partition, 0)
            self.findings.need(offset >= before, "R6", entry, "tasks watermark of partition %s: %d after %d", partition, offset, before)
            self.tasks[partition] = offset
