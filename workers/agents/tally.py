"""What a runner counts: episodes, retries, and every error that an agent saw. Written to a file whenever it changed.

Invariant: the file is always whole (written aside, then renamed).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

LAST_ERRORS = 20


@dataclass
class Tally:
    """Counts of one process. `lost` are tasks of which every try failed."""

    episodes: int = 0
    failed_tries: int = 0
    lost: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    last_errors: list[str] = field(default_factory=list)

    def count_error(self, said: str) -> None:
        """An agent or its session failed with this kind of error, a colon, and what it said."""
        self.failed_tries += 1
        self.errors[said.partition(":")[0]] += 1
        self.last_errors = [*self.last_errors, said][-LAST_ERRORS:]

    def as_json(self) -> dict[str, Any]:
        """The counts by name."""
        return {
            "episodes": self.episodes,
            "failed_tries": self.failed_tries,
            "lost": self.lost,
            "errors": dict(self.errors),
            "last_errors": self.last_errors,
        }

    def write(self, file: Path) -> None:
        """Replace the file."""
        temporary = file.with_suffix(".tmp")
        temporary.write_bytes(orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2))
        temporary.rename(file)
