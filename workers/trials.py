"""How often work on a record was begun and came to nothing, as the committed offset of its partition remembers it (Poison). Pure.

A record that kills its process is read again by the next one. So whoever takes over a partition that was not left cleanly counts: before
it works on a record it commits, as metadata beside the offset, that it begins. A record that was begun SUSPECT times runs alone in its
process, so that another death says which record kills; after FATAL such deaths it is poison.

Metadata: `left` after a clean end; else `offset:begun:alone` for each record that is counted, separated by commas; empty without any.
Invariant: `trials_of(metadata_of(trials)) == trials`; text that is none of these is no trials.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["FATAL", "LEFT", "NO_TRIAL", "SUSPECT", "Trial", "metadata_of", "trials_of"]

SUSPECT = 2
FATAL = 2
"""With the first death, which nobody counts, five deaths end it: as many as a supervisor allows in a row."""

LEFT = "left"


class Trial(NamedTuple):
    """How often a record was begun beside others, and how often alone."""

    begun: int = 0
    alone: int = 0

    @property
    def is_suspect(self) -> bool:
        """It may run alone only."""
        return self.begun >= SUSPECT

    @property
    def is_fatal(self) -> bool:
        """It must not be begun again."""
        return self.alone >= FATAL


NO_TRIAL = Trial()


def metadata_of(trials: Mapping[int, Trial]) -> str:
    """Trials by offset, as text: about twelve bytes each (a broker takes 4,096)."""
    return ",".join(f"{offset}:{trial.begun}:{trial.alone}" for offset, trial in sorted(trials.items()))


def trials_of(metadata: str) -> dict[int, Trial]:
    """Trials by offset."""
    parts = [part.split(":") for part in metadata.split(",")]
    if not all(len(part) == 3 and all(number.isdigit() for number in part) for part in parts):
        return {}
    return {int(offset): Trial(int(begun), int(alone)) for offset, begun, alone in parts}
