"""Score: what one rule says of one trajectory. Rules may be slow, several, and added later."""

from __future__ import annotations

import math
from typing import Literal

from schemas.record import Record
from schemas.task import Purpose


class Score(Record, frozen=True, kw_only=True):
    """The value of `rule` (at `rule_version`) for the trajectory at `trajectory`, in the same partition number of `trajectories`.

    The first `ok` Score of a (trajectory, rule) counts. `failed` says in `detail` why there is no value. `purpose` and `group` repeat
    the trajectory's, so that the source sees evaluations end without reading trajectories.

    :raises ValueError: the value is not finite.
    """

    trajectory: int
    session: int
    purpose: Purpose = "train"
    group: int | None = None
    rule: str
    rule_version: int = 1
    value: float
    components: dict[str, float] = {}
    status: Literal["ok", "failed"] = "ok"
    detail: str = ""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ValueError(f"score of rule {self.rule} is {self.value}")

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session
