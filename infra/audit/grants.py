"""The Grants of a log, and what they allow to claim (R1, first half).

Invariant: a claimed epoch is the offset of a Grant to the claiming incarnation, for the claimed partition.

`grants` is compacted: an older Grant of a partition may be gone. An epoch without a record is therefore a violation only where compaction
cannot be the reason: no later Grant of that partition stands, or the epoch lies beyond the place from which nothing was compacted yet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.audit.entry import Entry


@dataclass(slots=True)
class Grants:
    """All Grants that stand, by offset. `end` is the offset after the last record of the topic."""

    by_epoch: dict[int, Entry] = field(default_factory=dict)
    end: int = 0

    @classmethod
    def read(cls, entries: Iterable[Entry], end: int) -> Grants:
        """Keep the Grants among the records of `grants`."""
        return cls({entry.offset: entry for entry in entries if entry.type == "Grant"}, end)

    def objection(self, claim: Entry) -> str | None:
        """Why this Claim is not covered by a Grant; None where it is, or where compaction leaves it open."""
        epoch = claim["epoch"]
        grant = self.by_epoch.get(epoch)
        if grant is None:
            return None if self._may_be_compacted(epoch, claim.partition) else f"epoch {epoch} is no Grant"
        if grant["partition"] != claim.partition:
            return f"epoch {epoch} was granted for partition {grant['partition']}"
        if (grant["node"], grant["incarnation"]) != (claim["node"], claim["incarnation"]):
            return (
                f"epoch {epoch} was granted to {grant['node'] or 'nobody'} {grant['incarnation']}, "
                f"claimed by {claim['node']} {claim['incarnation']}"
            )
        return None

    def _may_be_compacted(self, epoch: int, partition: int) -> bool:
        later = any(offset > epoch and grant["partition"] == partition for offset, grant in self.by_epoch.items())
        return later and 0 <= epoch < self._complete_from()

    def _complete_from(self) -> int:
        """From here on no Grant is missing: a record that supersedes another one that still stands was not compacted against it."""
        seen: set[int] = set()
        for offset, grant in sorted(self.by_epoch.items()):
            if grant["partition"] in seen:
                return offset
            seen.add(grant["partition"])
        return self.end
