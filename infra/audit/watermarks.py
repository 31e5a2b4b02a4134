"""R6: Consumed, the trainer's memory across restarts, is true in every Step and Drops record.

If a watermark passed an undecided trajectory, a restart would lose it; if a decided one were neither below nor listed, a restart would
train it again; if `close` were too low, a restart would take a duplicate for a new trajectory.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from infra.audit.entry import Entry, Fields
from infra.audit.findings import Findings
from infra.audit.scores import FirstScores
from infra.audit.trajectories import Kept, PartitionTrajectories, Trajectories

NOTHING: Fields = {"trajectory": 0, "close": -1, "decided": [], "score": 0}


@dataclass(slots=True)
class Consumption:
    """What was decided so far, and what Consumed says of it. `train_groups` are the groups of training Tasks, where known."""

    trajectories: Trajectories
    scores: FirstScores
    findings: Findings
    train_groups: frozenset[int] = frozenset()
    dropped_groups: set[int] = field(default_factory=set)
    decided: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    groups: set[int] = field(default_factory=set)
    before: dict[int, Fields] = field(default_factory=dict)
    groups_below: int = 0
    tasks: dict[int, int] = field(default_factory=dict)

    def decide(self, partition: int, trajectory: int) -> None:
        """The trajectory at this offset entered a Step or Drops record."""
        self.decided[partition].add(trajectory)

    def undecided(self) -> int:
        """Training trajectories that no record decided yet."""
        return sum(
            kept.purpose == "train" and offset not in self.decided[partition]
            for partition, read in self.trajectories.items() for offset, kept in read.counted.items()
        )

    def check(self, entry: Entry) -> None:
        """Check the Consumed of one record, whose own decisions were told before."""
        said = {mark["partition"]: mark for mark in entry["consumed"]["watermarks"]}
        for partition in sorted({*said, *self.before, *self.decided}):
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
        need, read, below = self.findings.need, self.trajectories[partition], mark["trajectory"]
        open_ones = [kept for kept in read.counted.values() if kept.purpose == "train" and kept.entry_offset not in self.decided[partition]]
        skipped = [kept.entry_offset for kept in open_ones if kept.entry_offset < below or kept.entry_offset in mark["decided"]]
        need(not skipped, "R6", entry, "partition %d: %s are undecided, Consumed says decided (watermark %d)", partition, skipped, below)
        missing = sorted(self.decided[partition] - set(mark["decided"]) - set(range(below)))
        need(not missing, "R6", entry, "partition %d: %s are decided, Consumed does not say so (watermark %d)", partition, missing, below)
        end = max(read.closes, default=read.begin - 1) + 1
        need(below <= max(end, read.begin), "R6", entry, "partition %d: watermark %d, trajectories end at %d", partition, below, end)
        if below >= read.begin:
            expected = read.close_below(below)
            known = expected if read.begin == 0 else max(expected, mark["close"])
            text = "partition %d: close %d, the greatest below is %d"
            need(mark["close"] == known, "R6", entry, text, partition, mark["close"], expected)
        self._scores(entry, partition, mark, open_ones, read)

    def _scores(
        self, entry: Entry, partition: int, mark: Fields, open_ones: list[Kept], read: PartitionTrajectories
    ) -> None:
        first = self.scores.get(partition, {})
        passed = [
            kept.entry_offset for kept in open_ones
            if kept.entry_offset not in read.duplicates and first.get(kept.entry_offset)
            and max(first[kept.entry_offset]) < mark["score"]
        ]
        self.findings.need(
            not passed, "R6", entry, "partition %d: score watermark %d passes the scores of undecided %s", partition, mark["score"], passed
        )

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
