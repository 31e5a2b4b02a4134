"""How often work on a partition ended its process, as the committed offset of that partition remembers it (Poison). Pure.

A record that kills its process is read again by the next one. So whoever holds a partition writes, beside its offset, that work has begun,
before it begins; and whoever lives to end it, to stop, or to hand the partition on, takes that back. What was begun and not taken back is
a death, which the next holder counts. After SUSPECT deaths the records that may have been begun run alone, one after another, lowest first;
then a death says which record it was. After FATAL such deaths it is poison.

Invariants:
- the count of a partition falls only when the records that it is about are done; so a record ends at most SUSPECT + FATAL processes, if
  each of its beginnings is in the log before it;
- an end that takes its beginning back changes no count, and neither does whoever only takes over what nobody works on;
- `trials_of(metadata_of(trials)) == trials`; text that is no trials is none; the text is shorter than 100 characters.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple, cast

__all__ = ["FATAL", "NO_TRIALS", "SUSPECT", "Begun", "Trials", "metadata_of", "taken_over", "trials_of"]

SUSPECT = 3
FATAL = 2
"""Five deaths end it: as many as a supervisor allows in a row."""

Begun = Literal["", "some", "alone"]
"""Work that stands as begun: none, on some records, or on the lowest one while nothing else was done in its process."""

_TEXT = re.compile(r"deaths=(\d+);alone=(\d+);until=(\d+);begun=(some|alone|)")


class Trials(NamedTuple):
    """`deaths` with records below offset `until`, and `alone` so many of the lowest record alone. `begun`: what may be another one."""

    deaths: int = 0
    alone: int = 0
    until: int = 0
    begun: Begun = ""

    def suspects(self, offset: int) -> bool:
        """Whether the record at `offset` may run alone only."""
        return self.deaths >= SUSPECT and offset < self.until

    def is_wary(self, offset: int) -> bool:
        """Whether, with everything below `offset` done, some records are left that a death may have been about."""
        return self.deaths > 0 and offset < self.until


NO_TRIALS = Trials()


def taken_over(found: Trials, offset: int, end: int) -> Trials:
    """What a holder begins with that found this beside `offset`, where the partition goes up to `end`. Nothing stands as begun in it."""
    if found.begun == "alone":
        now = found._replace(alone=found.alone + 1, begun="")
    elif found.begun == "some":  # before the first death nobody wrote how far work had come
        now = found._replace(deaths=found.deaths + 1, until=found.until if found.deaths else end, begun="")
    else:
        now = found
    return now if now.is_wary(offset) else NO_TRIALS


def metadata_of(trials: Trials) -> str:
    """As text."""
    return "" if trials == NO_TRIALS else "deaths={};alone={};until={};begun={}".format(*trials)


def trials_of(metadata: str) -> Trials:
    """From text."""
    found = _TEXT.fullmatch(metadata)
    if found is None:
        return NO_TRIALS
    deaths, alone, until, begun = found.groups()
    return Trials(int(deaths), int(alone), int(until), cast("Begun", begun))
