"""Which partitions this incarnation holds, and what the grants say it should. Pure.

Invariant: a partition is held under at most one epoch, and it is live only from the moment at which its own Claim was read back (R1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.grant import Grant
from schemas.record import Record
from schemas.session import Cause
from streams.codec import Entry
from workers.ledger import Ledger
from workers.snapshot import Backlog


class Granted(NamedTuple):
    """A Grant for this incarnation: its epoch, and why the partition changed hands."""

    epoch: int
    cause: Cause


@dataclass
class Holding:
    """One partition under one epoch. `is_live`: the own Claim was read, so it may generate. `backlog`: what the next owner would read."""

    partition: int
    epoch: int
    ledger: Ledger
    is_live: bool = False
    backlog: Backlog = field(default_factory=Backlog)


class Reconciliation(NamedTuple):
    """What to give up and what to take, both by partition."""

    release: list[int]
    take: dict[int, Granted]


def granted_to(rows: Mapping[bytes, Entry[Record]], node: str, incarnation: str) -> dict[int, Granted]:
    """The partitions that the newest Grants give to this incarnation."""
    grants = ((entry.offset, entry.record) for entry in rows.values())
    return {
        grant.partition: Granted(offset, grant.cause)
        for offset, grant in grants
        if isinstance(grant, Grant) and (grant.node, grant.incarnation) == (node, incarnation)
    }


def reconcile(held: Mapping[int, Holding], granted: Mapping[int, Granted]) -> Reconciliation:
    """Compare what is held with what is granted. A newer epoch of the same partition is given up and taken anew."""
    kept = {partition for partition, holding in held.items() if partition in granted and granted[partition].epoch == holding.epoch}
    return Reconciliation(
        release=sorted(set(held) - kept),
        take={partition: grant for partition, grant in sorted(granted.items()) if partition not in kept},
    )
