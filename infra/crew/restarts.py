"""When a member that ended is started again. Pure: times are handed in, in seconds of one clock.

Invariants: the pauses grow from `FIRST_S` by doubling up to `LONGEST_S`, and start over once a member has worked for `HEALTHY_S`; no member
is given up for an error that trying again may mend, unless it failed `RESTARTS` times in a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schemas.errors import BrokerError, Superseded, TopicMismatch, UnknownRecord, UsageError

FIRST_S, LONGEST_S = 0.5, 30.0
HEALTHY_S = 30.0
RESTARTS = 5

HOPELESS = frozenset(error.exit_code for error in (UsageError, TopicMismatch, UnknownRecord))
"""Exit codes of a process that would end in the same way again: a wrong setting, a missing topic, software that is too old."""

Verdict = Literal["restart", "rest", "give up"]


@dataclass
class Restarts:
    """The record of one member: how often it failed in a row, since when it works, when it may start again."""

    failures: int = 0
    working_since_s: float | None = None
    due_s: float = 0.0

    def works(self, now_s: float) -> None:
        """It is ready."""
        self.working_since_s = self.working_since_s or now_s
        if now_s - self.working_since_s >= HEALTHY_S:
            self.failures = 0

    def ended(self, exit_code: int | None, now_s: float) -> Verdict:
        """It ended with an error (None: unknown). `rest`: another process does its work now."""
        self.working_since_s = None
        if exit_code == Superseded.exit_code:
            return "rest"
        self.failures += 1
        self.due_s = now_s + min(LONGEST_S, FIRST_S * 2 ** (self.failures - 1))
        hopeless = exit_code in HOPELESS or (self.failures > RESTARTS and exit_code != BrokerError.exit_code)
        return "give up" if hopeless else "restart"
