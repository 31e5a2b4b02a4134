"""cas: what one write committed stands together, once, under its own nonce; Tasks are numbered without a gap.

Invariants: every record of `training`, `grants` and `tasks` carries a `nonce` header of 16 bytes; in a partition, records of one nonce
stand side by side (a write that was committed again after an unknown outcome would stand behind the first one's transaction marker).
"""

from __future__ import annotations

from collections.abc import Iterable

from infra.audit.entry import Entry
from infra.audit.findings import Findings

NONCE_BYTES = 16


def check_writes(entries: Iterable[Entry], findings: Findings) -> list[Entry]:
    """Check the nonces of one topic's records; answers the records."""
    read = list(entries)
    last: dict[tuple[int, bytes], int] = {}
    for entry in read:
        nonce = entry.nonce or b""
        findings.need(len(nonce) == NONCE_BYTES, "cas", entry, "%s has a nonce of %d bytes", entry.type, len(nonce))
        before = last.get((entry.partition, nonce))
        together = before is None or before == entry.offset - 1
        findings.need(together, "cas", entry, "the write of offset %s was committed again", before)
        last[entry.partition, nonce] = entry.offset
    return read


def check_tasks(tasks: Iterable[Entry], before_ms: int, findings: Findings) -> None:
    """Numbers count from 0 without a gap or a double; a (group, member) is one Task.

    A gap before a Task as young as `before_ms` is not judged: a commit becomes visible partition by partition, and the log may have been
    opened between two of them.
    """
    members: set[tuple[int, int]] = set()
    expected = 0
    for task in sorted(tasks, key=lambda task: (task["number"], task.partition, task.offset)):
        in_turn = task["number"] == expected or (task["number"] > expected and task.timestamp_ms > before_ms)
        findings.need(in_turn, "cas", task, "task %d where %d is expected", task["number"], expected)
        expected = task["number"] + 1
        member = (task["group"], task["member"])
        findings.need(member not in members, "cas", task, "member %d of group %d is a second Task", member[1], member[0])
        members.add(member)
