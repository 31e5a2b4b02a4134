"""Whether a node tagged both ways generates now, by its own Role. Pure.

Invariant: a node without a Role, or with one tag, is always on duty; one whose last Role says `train`, or `asleep`, never is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from schemas.grant import Role
from schemas.node import Tag
from schemas.record import Record
from streams.codec import Entry

__all__ = ["alternates", "is_on_duty"]


def alternates(tags: Collection[Tag]) -> bool:
    """Whether a node with these tags follows Roles at all."""
    return "rollout" in tags and "train" in tags


def is_on_duty(rows: Mapping[bytes, Entry[Record]], node: str, tags: Collection[Tag]) -> bool:
    """Whether the newest Role among `rows` (the table of `grants`) lets this node generate."""
    if not alternates(tags):
        return True
    entry = rows.get(Role(node=node, role="rollout").key())
    if entry is None or not isinstance(entry.record, Role):
        return True
    return entry.record.role == "rollout" and not entry.record.asleep
