"""A row of the crash matrix: one fault, on real processes, and what proves that it happened.

A row is an async function over a Stage (`tests.chaos.stage`), registered by `row`, in a module `tests/chaos/rows_*.py`. It makes its fault
under fresh work and answers a Happened. What follows is the frame's: waiting until all work has ended, and the check from raw bytes.

Invariants: no two rows have one name; a row without proof of its fault never passes; one that cannot run here raises Skip with the reason.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from tests.chaos.stage import Stage

Scene = Literal["calls", "loop", "roles", "bare"]
"""What stands when a row begins. `calls`: all but source, agents and trainer, under version 0. `loop`: the closed loop, training without
end. `roles`: the same, where the trainer and both workers share their nodes, and take turns. `bare`: the cluster alone."""


class Skip(Exception):
    """This row cannot run here; the reason is printed and reported."""


@dataclass(frozen=True, slots=True)
class Happened:
    """What a row saw. `fired` says what proves that the fault happened; empty: it did not.

    `allowed`: rules that the row itself broke in the log, on purpose. `least_stall_s`: without a silence as long as this the fault did not
    happen. `stall_s`: what the row measured itself. `lost`, `twice`: what it counted itself; a row without a pipeline must.
    """

    fired: str
    allowed: tuple[str, ...] = ()
    least_stall_s: float = 0.0
    stall_s: float | None = None
    lost: int | None = None
    twice: int | None = None


Play = Callable[["Stage"], Awaitable[Happened]]


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. `failpoint`: where it kills, if it does. `arms`: the member that the row starts itself, to die there; others work before.
    `is_alone`: on a pipeline that no other row has seen or will see.
    """

    fault: str
    tier: str
    play: Play
    scene: Scene = "calls"
    failpoint: str = ""
    arms: str = ""
    is_alone: bool = False

    @property
    def is_loop(self) -> bool:
        """Whether a trainer trains without end."""
        return self.scene in ("loop", "roles")


_rows: dict[str, Row] = {}


def row(
    fault: str, *, tier: str = "one node", scene: Scene = "calls", failpoint: str = "", arms: str = "", is_alone: bool = False
) -> Callable[[Play], Play]:
    """Register a function as a row; several times with several failpoints, it is several rows.

    :raises ValueError: another row has this name.
    """

    def register(play: Play) -> Play:
        if fault in _rows:
            raise ValueError(f"two rows are named {fault!r}")
        _rows[fault] = Row(fault, tier, play, scene, failpoint, arms, is_alone)
        return play

    return register


def all_rows() -> list[Row]:
    """The rows of all modules `rows_*`, as registered."""
    for module in sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.startswith("rows_"):
            importlib.import_module(f"tests.chaos.{module}")
    return list(_rows.values())
