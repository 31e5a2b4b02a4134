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
    """What a node tagged both ways does from now on. Key: `role/NODE`. A node without a Role generates; so does any with one tag.

    With `asleep` it does neither: it is on the way to its `role`, lets go of what it did, and says so by a status `asleep` that holds no
    partition and has seen this record. Only then may a Role without `asleep` follow, and one with it always stands between `rollout` and
    `train`. A trainer may therefore step on nodes whose last Role is `train`, and an engine may wake where it is `rollout`. A process
    that starts anew does what the last Role says. `reason` is for people, with its figures.
    """

    node: str
    role: Literal["rollout", "train"]
    asleep: bool = False
    reason: str = ""

    def key(self) -> bytes:
        """`role/NODE`."""
        return b"role/" + self.node.encode()
