"""Scores as the trainer must have seen them: per trajectory, the first `ok` Score of each rule.

Invariant: a Score names a Trajectory that stands at its offset, with its session, purpose and group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from infra.audit.entry import Entry
from infra.audit.findings import Findings
from infra.audit.trajectories import Trajectories

FirstScores = dict[int, dict[int, list[int]]]
"""Partition → trajectory offset → offsets of the first `ok` Score of each rule."""


def read_scores(entries: Iterable[Entry], trajectories: Trajectories, findings: Findings) -> FirstScores:
    """Check that each Score has its Trajectory; keep the offsets of those that count."""
    first: FirstScores = defaultdict(lambda: defaultdict(list))
    seen: set[tuple[int, int, str]] = set()
    for entry in entries:
        _check_subject(entry, trajectories, findings)
        key = (entry.partition, entry["trajectory"], entry["rule"])
        if entry["status"] == "ok" and key not in seen:
            seen.add(key)
            first[entry.partition][entry["trajectory"]].append(entry.offset)
    return first


def _check_subject(entry: Entry, trajectories: Trajectories, findings: Findings) -> None:
    read = trajectories[entry.partition]
    stands = entry["trajectory"] in read.offsets or entry["trajectory"] < read.begin
    findings.need(stands, "R6", entry, "score of %d, where no Trajectory stands", entry["trajectory"])
    kept = read.counted.get(entry["trajectory"])
    if kept is not None:
        said, expected = (entry["session"], entry["purpose"], entry["group"]), (kept.session, kept.purpose, kept.group)
        findings.need(said == expected, "R6", entry, "session, purpose, group are %s, the Trajectory says %s", said, expected)
