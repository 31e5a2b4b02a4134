"""What a recomputation of weights showed, entry by entry of the course, and the verdict. Pure; no torch.

Invariant: the verdict is that of the first weights that are not the log's; what was made from those has no say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

__all__ = ["Asked", "Compared", "Outcome", "Report"]

Outcome = Literal["equal", "different", "not comparable", "follows", "unproven"]
"""`follows`: made from weights that are not those of the log. `unproven`: trajectories, or what to start from, are gone."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to recompute: steps `first` to `last` (None: the last one in the log). `checkpoints` is their folder (None: as the run was set),
    `threads` those of torch (None: as many as each step was made with)."""

    first: int = 1
    last: int | None = None
    checkpoints: Path | None = None
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Compared:
    """One entry of the course. Digests are those of the weights, or of the optimizer where it alone differs (`what`). `numerics` holds what
    differs in the keys: name → (log, here). `max_difference` is the largest absolute difference to the published weights, None where
    they are equal, were not published or their files are gone."""

    step: int
    version: int | None
    outcome: Outcome
    expected_sha256: str
    found_sha256: str = ""
    numerics: Mapping[str, tuple[str | None, str | None]] = field(default_factory=dict)
    max_difference: float | None = None
    what: Literal["weights", "optimizer"] = "weights"


@dataclass(frozen=True, slots=True)
class Report:
    """What a recomputation showed. `start` is the step after whose weights it began."""

    start: int
    compared: list[Compared]

    @property
    def first_difference(self) -> Compared | None:
        """The first weights that are not those of the log."""
        return next((each for each in self.compared if each.outcome in ("different", "not comparable")), None)

    @property
    def verdict(self) -> Outcome:
        """That of the first difference; equal without one; unproven where nothing could be compared."""
        if self.first_difference is not None:
            return self.first_difference.outcome
        return "equal" if any(each.outcome == "equal" for each in self.compared) else "unproven"

    def unproven(self, first: int = 1) -> list[int]:
        """Steps from `first` on of which nothing can be said."""
        return sorted({each.step for each in self.compared if each.outcome == "unproven" and each.step >= first})

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        outcomes, found = Counter(each.outcome for each in self.compared), self.first_difference
        differences = [each.max_difference for each in self.compared if each.max_difference is not None]
        return {
            "verdict": self.verdict,
            "start": self.start,
            "first": self.compared[0].step if self.compared else None,
            "last": self.compared[-1].step if self.compared else None,
            "versions": sum(each.version is not None for each in self.compared),
            "versions_equal": sum(each.version is not None and each.outcome == "equal" for each in self.compared),
            "outcomes": dict(outcomes),
            "first_difference": None if found is None else {name: getattr(found, name) for name in Compared.__slots__},
            "max_difference": max(differences, default=None),
            "unproven": self.unproven(),
        }
