"""Grant and Role: who may generate for a partition, and who does what. Written by the scheduler through cas only."""

from __future__ import annotations

from typing import Literal

from schemas.record import Record
from schemas.session import Cause


class Grant(Record, frozen=True, kw_only=True):
    """Partition `partition` belongs to incarnation `incarnation` of `node` from now on; the offset of this record is the epoch.

    An empty `node` revokes; `holder` is then the incarnation that has to let go before anybody else is granted it (the record before may be
    compacted away). Key: `partition/N`. `reason` is for people, with its figures.
    """

    partition: int
    node: str = ""
    incarnation: str = ""
    holder: str = ""
    cause: Cause = "joined"
    reason: str = ""

    def key(self) -> bytes:
        """`partition/N`."""
        return b"partition/%d" % self.partition


class Role(Record, frozen=True, kw_only=True):
    """What a node tagged both ways does now. Key: `role/NODE`. The seam for multiplexing: nodes with one tag have no Role."""

    node: str
    role: Literal["rollout", "train"]
    reason: str = ""

    def key(self) -> bytes:
        """`role/NODE`."""
        return b"role/" + self.node.encode()
