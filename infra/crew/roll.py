"""The roll: which processes a crew has in a run folder, written down so that another process can end them when the crew's own died.

Invariant: only the very processes that are written down are ever signalled (pid and start time), so an old roll harms nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from infra.broker.process import Process, end_all, start_time
from schemas.errors import SetupError

FILE = "crew.json"
CREW_GRACE_S = 60.0
"""A crew that is asked to end ends its members first: agents, then all others."""
GRACE_S = 25.0


class Roll(msgspec.Struct, frozen=True, kw_only=True):
    """The process that looks after the others, and those others by name."""

    crew: Process
    members: dict[str, Process] = {}


def write_roll(run_dir: Path, members: Mapping[str, Process]) -> None:
    """Replace the roll; this process is the one that looks after them.

    :raises SetupError: the run folder cannot be written.
    """
    roll = Roll(crew=Process(os.getpid(), start_time(os.getpid()) or ""), members=dict(members))
    aside = run_dir / f"{FILE}.{os.getpid()}"
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(msgspec.json.encode(roll))
        aside.replace(run_dir / FILE)
    except OSError as failure:
        raise SetupError(f"{run_dir} cannot be written: {failure.strerror}; free disk or name another run folder") from failure


def read_roll(run_dir: Path) -> Roll | None:
    """The roll of a run folder; None where there is none that can be read."""
    try:
        return msgspec.json.decode((run_dir / FILE).read_bytes(), type=Roll)
    except (OSError, msgspec.DecodeError):
        return None


def strike_roll(run_dir: Path) -> None:
    """Remove the roll: its processes have ended."""
    (run_dir / FILE).unlink(missing_ok=True)


def require_vacant(run_dir: Path) -> None:
    """Check that no other process looks after a crew here.

    :raises SetupError: one does.
    """
    roll = read_roll(run_dir)
    if roll is not None and roll.crew.pid != os.getpid() and roll.crew.is_alive():
        raise SetupError(f"process {roll.crew.pid} runs a pipeline in {run_dir}: end it with `seamlessflow down`, or name another folder")


def end_crew(run_dir: Path) -> list[str]:
    """End the crew of a run folder, and members that it left behind when it was killed; answers the names of those that ran."""
    roll = read_roll(run_dir)
    if roll is None:
        return []
    ran = [name for name, process in roll.members.items() if process.is_alive()]
    if roll.crew.pid != os.getpid():
        end_all([roll.crew], grace_s=CREW_GRACE_S)
    end_all(list(roll.members.values()), grace_s=GRACE_S)
    strike_roll(run_dir)
    return ran
