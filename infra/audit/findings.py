"""What the audit found: how often each rule was looked at, and every place where it does not hold.

What retention took is no violation: where a check needs records that are gone, it is counted as unproven, and says what cannot be said.

Invariant: a rule with a violation was checked at least once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

Rule = Literal["R1", "R2", "R3", "R4", "R5", "R6", "R8", "cas", "digest", "roles"]

RULES: dict[Rule, str] = {
    "R1": "fence: only the newest claimed epoch counts, and each epoch is a Grant",
    "R2": "continuity: spans start where the accepted tokens end",
    "R3": "the first end wins, and nothing ends that still runs",
    "R4": "records are well formed: arrays aligned, values finite, types known, blobs whole",
    "R5": "committed positions are facts of the log",
    "R6": "each trajectory once, each token trained at most once",
    "R8": "versions are published once, in order, with their files",
    "cas": "records of one write stand together, once",
    "digest": "weights are the bytes that the log names",
    "roles": "sleep stands between the roles of a node, and only who is to generate is granted partitions",
}
"""In the order of the report. `digest` is the half of R8 that reads files."""


class Placed(Protocol):
    """Anything that stands somewhere in the log."""

    @property
    def topic(self) -> str: ...  # noqa: D102
    @property
    def partition(self) -> int: ...  # noqa: D102
    @property
    def offset(self) -> int: ...  # noqa: D102


class Place(NamedTuple):
    """A place in the log; `topic` without the namespace."""

    topic: str
    partition: int
    offset: int


class Violation(NamedTuple):
    """`rule` does not hold at (`topic`, `partition`, `offset`); `text` says how, with the figures."""

    rule: Rule
    topic: str
    partition: int
    offset: int
    text: str


class Expired(NamedTuple):
    """The beginning of a partition is gone: `first` is the first offset left."""

    topic: str
    partition: int
    first: int


class Unproven(NamedTuple):
    """What cannot be proven of a partition any more, because records that `rule` needs have expired; `text` says what."""

    rule: Rule
    topic: str
    partition: int
    text: str


@dataclass(slots=True)
class Findings:
    """Collects checks. All checkers of one audit share one. `unproven` counts the checks that could not be made."""

    checked: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    unproven: Counter[Unproven] = field(default_factory=Counter)

    def leave(self, rule: Rule, topic: str, partition: int, text: str) -> None:
        """One check of `rule` that cannot be made: what it needs has expired."""
        self.unproven[Unproven(rule, topic, partition, text)] += 1

    def need(self, holds: bool, rule: Rule, at: Placed, text: str, *figures: object) -> bool:
        """Count one check of `rule` at `at`; a violation with `text % figures` where it does not hold. Answers `holds`."""
        self.checked[rule] += 1
        if not holds:
            self.violations.append(Violation(rule, at.topic, at.partition, at.offset, text % figures))
        return holds
