"""The Roles of a log: sleep stands between the roles of a node, and nobody generates who is not to.

Invariants that are checked, each in the order of `grants`:
- a plain Role follows one that puts the node to sleep on its way to that role;
- a Grant names no node whose last Role is another than plain `rollout`; a span's epoch is its Grant, so no span does.

`grants` is compacted: where the Roles of a node that came before are gone, its first one that stands is taken as it is. What stands is
complete from there on, for a record is removed only where a later one of its key makes the earlier ones go, too.
"""

from __future__ import annotations

from collections.abc import Iterable

from infra.audit.entry import Entry
from infra.audit.findings import Findings

__all__ = ["check_roles"]


def check_roles(entries: Iterable[Entry], findings: Findings) -> None:
    """Look at all records of `grants`."""
    last: dict[str, Entry] = {}
    for entry in sorted(entries, key=lambda entry: entry.offset):
        before = last.get(entry["node"])
        if entry.type == "Role":
            is_covered = entry["asleep"] or before is None or (before["asleep"] and before["role"] == entry["role"])
            findings.need(is_covered, "roles", entry, "%s turns to %s after %s, without sleep", entry["node"], entry["role"], _said(before))
            last[entry["node"]] = entry
        elif entry["node"]:
            findings.need(_may_generate(before), "roles", entry, "granted to %s, whose last Role is %s", entry["node"], _said(before))


def _may_generate(role: Entry | None) -> bool:
    return role is None or (role["role"] == "rollout" and not role["asleep"])


def _said(role: Entry | None) -> str:
    if role is None:
        return "none"
    return f"{role['role']}, {'asleep' if role['asleep'] else 'awake'}, at {role.offset}"
