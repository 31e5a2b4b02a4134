"""One audit: read the log topic by topic, hand each to its checker, sum up.

Invariants: a verdict is a function of the log, the files that it names, and the options, and nothing is written; what retention took is
told by topic and partition, with what cannot be proven without it, and is no violation.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from infra.audit.cas import check_tasks, check_writes
from infra.audit.entry import Entry, Unreadable, read_entry
from infra.audit.figures import SessionFigures, session_figures
from infra.audit.findings import RULES, Expired, Findings, Place, Rule, Unproven, Violation
from infra.audit.grants import Grants
from infra.audit.log import Log
from infra.audit.loss import Loss, loss_of
from infra.audit.positions import check_positions, epoch_of
from infra.audit.roles import check_roles
from infra.audit.scores import read_scores
from infra.audit.sessions import PartitionRead, SessionRead
from infra.audit.training import TrainingRead, decided_places
from infra.audit.trajectories import PartitionTrajectories, Trajectories, check_complete, read_trajectories
from infra.audit.weights import WeightFiles, check_span_versions


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`staleness_bound` in versions, checked where given. `grace_ms`: what younger records refer to may not be written yet. `kills_ms`:
    when owners were killed. `weights`: read the files of the versions."""

    staleness_bound: int | None = None
    grace_ms: int = 0
    kills_ms: tuple[int, ...] = ()
    weights: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an audit says. `checked` counts checks by rule; `records` by topic; `dead_letters` by topic and reason.

    `versions_removed`: versions whose files are gone, as the log says they may be. `expired`: partitions whose beginning is gone.
    `unproven`: what can therefore not be said, and of how many records.
    """

    violations: list[Violation]
    checked: dict[str, int]
    records: dict[str, int]
    figures: SessionFigures
    trajectories: int
    undecided: int
    steps: int
    versions: int
    versions_removed: int
    trained_tokens: int
    trained_twice: int
    staleness_max: int | None
    dropped: dict[str, int]
    dead_letters: dict[str, int]
    expired: list[Expired]
    unproven: list[tuple[Unproven, int]]

    @property
    def audit_ok(self) -> bool:
        """True without a violation."""
        return not self.violations

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the session figures beside the others."""
        said = {"audit_ok": self.audit_ok, **asdict(self)}
        said |= said.pop("figures")
        said["violations"] = [violation._asdict() for violation in self.violations]
        said["expired"] = [each._asdict() for each in self.expired]
        said["unproven"] = [{**each._asdict(), "count": count} for each, count in self.unproven]
        said["takeover_s"] = max((t.seconds for t in self.figures.takeovers if t.cause == "dead" and t.seconds is not None), default=None)
        return said


Progress = Callable[[str, int], None]
"""Told a topic and how many of its messages were read."""

PROGRESS_EVERY = 1000

CUT: dict[str, dict[Rule, str]] = {
    "sessions": {"R1": "claims that are gone", "R2": "spans that are gone", "R3": "ends that are gone"},
    "trajectories": {"R6": "Trajectories that are gone"},
    "scores": {"R6": "which Score of a rule was the first"},
    "training": {
        "R6": "that nothing was trained twice, and what was consumed", "R8": "that versions are published once, in order",
    },
    "tasks": {"cas": "that Tasks are numbered without a gap"},
}  # fmt: skip
"""By topic: what cannot be proven where the beginning of one of its partitions is gone. `grants` is compacted: `infra.audit.grants`."""


class Audit:
    """One reading of one log; `run` answers the verdict. Its attributes are what the readings so far found, for the next ones to refer
    to."""

    def __init__(self, log: Log, options: AuditOptions | None = None, progress: Progress | None = None) -> None:
        self._log = log
        self._options = options or AuditOptions()
        self._progress = progress or (lambda topic, count: None)
        self._records: Counter[str] = Counter()
        self._before_ms = log.end_ms - self._options.grace_ms
        self.findings = Findings()
        self._files = WeightFiles(self.findings, lambda uri: self._progress("weights", 0))

    def run(self) -> Verdict:
        """Read everything.

        :raises BrokerError: the log cannot be read; see `infra.audit.log`.
        """
        granted = check_writes(self._entries("grants"), self.findings)
        check_roles(granted, self.findings)
        grants = Grants.read(granted, max(self._log.ends("grants").values(), default=0))
        partitions = self._sessions(grants)
        written = check_writes(self._entries("training"), self.findings)
        starts = self._log.starts("trajectories")
        trajectories = read_trajectories(self._entries("trajectories"), partitions, starts, decided_places(written), self.findings)
        check_complete(partitions, trajectories, self._before_ms, self.findings)
        self._positions(partitions, trajectories)
        training = self._training(written, trajectories)
        if training.versions and not self._is_cut("training"):
            check_span_versions(partitions, training.versions, self._before_ms, self.findings)
        if self._options.weights:
            self._files.check(training.versions.values())
        return self._verdict(partitions, trajectories, training)

    def loss(self) -> Loss:
        """Read `sessions` and `training` alone: what was sampled in vain, and why.

        :raises BrokerError: as `run`.
        """
        grants = Grants.read(check_writes(self._entries("grants"), self.findings), max(self._log.ends("grants").values(), default=0))
        return loss_of(self._sessions(grants), check_writes(self._entries("training"), self.findings))

    def _sessions(self, grants: Grants) -> dict[int, PartitionRead]:
        starts = self._log.starts("sessions")
        read = {partition: self._partition(partition, start, grants) for partition, start in starts.items()}
        for message, found in self._decoded("sessions"):
            if isinstance(found, Unreadable):
                read[message.partition].unreadable(message, str(found), stops=found.stops)
            else:
                read[message.partition].apply(found)
        return read

    def _partition(self, partition: int, start: int, grants: Grants) -> PartitionRead:
        """From the beginning; where retention took it, from the lowest Position left; without one, from the next reset (R5)."""
        if start == 0:
            return PartitionRead(partition, grants, self.findings)
        committed = [self._log.committed(group).get(partition, (-1, "")) for group in ("rollout", "assembler")]
        left = sorted((offset, epoch) for offset, text in committed if offset >= start and (epoch := epoch_of(text)) is not None)
        if left:
            return PartitionRead(partition, grants, self.findings, begin=left[0][0], epoch=left[0][1])
        return PartitionRead(partition, grants, self.findings, begin=start, waiting=True)

    def _positions(self, partitions: dict[int, PartitionRead], trajectories: Trajectories) -> None:
        ends = self._log.ends("sessions")
        check_positions(
            "rollout", self._log.committed("rollout"), partitions, lambda _, session: session.closed is None, ends, self.findings
        )
        check_positions(
            "assembler", self._log.committed("assembler"), partitions,
            lambda partition, session: _waits_for_trajectory(trajectories[partition], session), ends, self.findings,
        )

    def _training(self, written: list[Entry], trajectories: Trajectories) -> TrainingRead:
        scores = read_scores(self._entries("scores"), trajectories, self.findings)
        tasks = check_writes(self._entries("tasks"), self.findings)
        check_tasks(tasks, self._before_ms, self._judging("tasks"))
        training = TrainingRead(trajectories, scores, self._judging("training"), self._options.staleness_bound)
        training.consumption.train_groups = frozenset(task["group"] for task in tasks if task["purpose"] == "train")
        training.read(written)
        return training

    def _is_cut(self, topic: str) -> bool:
        return any(self._log.starts(topic).values())

    def _judging(self, topic: str) -> Findings:
        """Numbers of `tasks` and `training` follow from the first on: without it nothing is judged, and figures are those of the rest."""
        return Findings() if self._is_cut(topic) else self.findings

    def _expired(self) -> list[Expired]:
        return [
            Expired(topic, partition, first) for topic in CUT for partition, first in sorted(self._log.starts(topic).items()) if first
        ]

    def _leave(self, expired: list[Expired], partitions: dict[int, PartitionRead]) -> None:
        """What the missing beginnings alone say: the checks that would have been made there."""
        for topic, partition, first in expired:
            for rule, text in CUT[topic].items():
                self.findings.leave(rule, topic, partition, text)
            if topic == "sessions":
                read = partitions[partition]
                where = "anything: no Position is left, and no reset follows" if read.waiting else f"records below {read.begin}"
                if read.waiting or read.begin > first:
                    self.findings.leave("R5", topic, partition, where)

    def _entries(self, topic: str) -> Iterator[Entry]:
        """The records of a topic; what is none is a violation of R4 and passed over, as its readers do."""
        for message, found in self._decoded(topic):
            if self.findings.need(not isinstance(found, Unreadable), "R4", message, "%s", found):
                assert isinstance(found, Entry)
                yield found

    def _decoded(self, topic: str) -> Iterator[tuple[Place, Entry | Unreadable]]:
        counts = itertools.count(1)
        for message, count in zip(self._log.read(topic), counts, strict=False):
            self._records[topic] += 1
            if count % PROGRESS_EVERY == 0:
                self._progress(topic, count)
            place = Place(topic, message.partition, message.offset)
            try:
                yield place, read_entry(message, topic)
            except Unreadable as reason:
                yield place, reason
        self._progress(topic, self._records[topic])

    def _dead_letters(self) -> dict[str, int]:
        """Dead letters by topic and reason: they are reports of violations elsewhere, not violations."""
        letters = (found for _, found in self._decoded("deadletter") if isinstance(found, Entry) and found.type == "DeadLetter")
        return dict(Counter(f"{letter['topic']}: {letter['reason']}" for letter in letters))

    def _verdict(self, partitions: dict[int, PartitionRead], trajectories: Trajectories, training: TrainingRead) -> Verdict:
        dead_letters, expired = self._dead_letters(), self._expired()
        self._leave(expired, partitions)
        return Verdict(
            violations=sorted(self.findings.violations),
            checked={rule: self.findings.checked[rule] for rule in RULES},
            records=dict(self._records),
            figures=session_figures(partitions, self._options.kills_ms),
            trajectories=sum(len(read.counted) for read in trajectories.values()),
            undecided=training.consumption.undecided(),
            steps=len(training.steps),
            versions=len(training.versions),
            versions_removed=self._files.removed,
            trained_tokens=len(training.times_trained),
            trained_twice=training.trained_twice,
            staleness_max=training.staleness_max,
            dropped=dict(training.dropped),
            dead_letters=dead_letters,
            expired=expired,
            unproven=sorted(self.findings.unproven.items()),
        )


def _waits_for_trajectory(read: PartitionTrajectories, session: SessionRead) -> bool:
    """An assembler may not start above it: it is open, or ended without a Trajectory (one that has expired was written)."""
    if session.closed is None:
        return True
    missing = not session.ended_by_reset and session.entry.offset not in read.sessions
    return missing and not read.may_have_expired(session.closed)
