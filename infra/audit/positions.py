"""R5: what groups committed as Positions are facts of the log.

A Position (offset, epoch) of partition n is true where the epoch is the one in force before `offset` is read, `offset` is no further than
the end, and no session that began below it still needs a reader: for `rollout` none that is open, for `assembler` none without its
Trajectory. Sessions that a Claim with `reset` ended have no Trajectory, and need none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from infra.audit.findings import Findings, Place
from infra.audit.sessions import PartitionRead, SessionRead

Commits = Mapping[int, tuple[int, str]]


def check_positions(
    group: str, commits: Commits, partitions: Mapping[int, PartitionRead], needs_reader: Callable[[int, SessionRead], bool],
    ends: Mapping[int, int], findings: Findings,
) -> None:
    """Check every Position of `group`. `needs_reader(partition, session)` is true where a reader may not start above the session's Open."""
    for partition, (offset, metadata) in sorted(commits.items()):
        place = Place("sessions", partition, offset)
        within = offset <= ends.get(partition, 0)
        findings.need(within, "R5", place, "%s committed %d, the log ends at %d", group, offset, ends.get(partition, 0))
        if partition in partitions:
            _check_epoch(group, place, metadata, partitions[partition], findings)
            _check_skipped(group, place, partitions[partition], needs_reader, findings)


def epoch_of(metadata: str) -> int | None:
    """The epoch in a committed text such as `epoch=12;`; None where it is another text."""
    name, _, number = metadata.partition("=")
    digits = number.removesuffix(";")
    return int(digits) if name == "epoch" and number.endswith(";") and digits.lstrip("-").isdigit() else None


def _check_epoch(group: str, place: Place, metadata: str, read: PartitionRead, findings: Findings) -> None:
    if place.offset < read.begin:
        return  # retention passed it: the log no longer says which epoch was in force there
    epoch = epoch_of(metadata)
    in_force = read.epoch_at(place.offset)
    findings.need(epoch == in_force, "R5", place, "%s committed %r, epoch %d is in force there", group, metadata, in_force)


def _check_skipped(
    group: str, place: Place, read: PartitionRead, needs_reader: Callable[[int, SessionRead], bool], findings: Findings
) -> None:
    for opened, session in read.sessions.items():
        if opened < place.offset:
            skipped = needs_reader(place.partition, session)
            findings.need(not skipped, "R5", place, "%s committed %d, which skips session %d", group, place.offset, opened)
