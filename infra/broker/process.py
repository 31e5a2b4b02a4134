"""Processes that outlive their starter, known by pid and start time.

Invariant: no signal is ever sent to a pid whose start time is not the recorded one: a recycled pid belongs to somebody else.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from schemas.errors import SetupError

_PROC = Path("/proc")
_exit_codes: dict[int, int] = {}
"""Of children that were reaped."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process of this boot. `started` is the kernel's own word for when, compared as text."""

    pid: int
    started: str

    def is_alive(self) -> bool:
        """True while this very process runs. A child that ended is reaped."""
        _reap(self.pid)
        return start_time(self.pid) == self.started

    def exit_code(self) -> int | None:
        """How a child of this process ended (negative: by that signal); None while it runs, or where it is nobody's child here."""
        if self.is_alive():
            return None
        if self.pid not in _exit_codes:  # it ended between the two looks of `is_alive`
            _reap(self.pid, options=0)
        return _exit_codes.get(self.pid)

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal if the process still is the recorded one; answers whether it was sent."""
        if not self.is_alive():
            return False
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            return False
        return True


def spawn(command: Sequence[str], log: Path) -> Process:
    """Start `command` in a session of its own, so that neither Ctrl-C nor a closed terminal ends it; its output is appended to `log`.

    `subprocess.Popen` would warn of every child that is left running on purpose.

    :raises SetupError: it cannot be started.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    output = (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644)
    errors = (os.POSIX_SPAWN_DUP2, 1, 2)
    try:
        pid = os.posix_spawn(command[0], list(command), dict(os.environ), file_actions=[nothing, output, errors], setsid=True)
    except OSError as failure:
        raise SetupError(f"{command[0]} cannot be started: {failure}") from failure
    return Process(pid, start_time(pid) or "ended at once")


def start_time(pid: int) -> str | None:
    """When the process with this pid started, as text that no other process of this machine shares; None where none runs."""
    return _linux_start_time(pid) if _PROC.joinpath("self", "stat").exists() else _ps_start_time(pid)


def end_all(processes: Sequence[Process], *, grace_s: float) -> None:
    """SIGTERM to all at once, SIGKILL to those that are left after `grace_s` seconds. Frozen ones are thawed to hear it.

    One by one would not do: the last node of a quorum waits minutes for the others.
    """
    for process in processes:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)
    if await_death(processes, deadline_s=grace_s):
        return
    for process in processes:
        process.signal(signal.SIGKILL)
    await_death(processes, deadline_s=grace_s)


def await_death(processes: Sequence[Process], *, deadline_s: float) -> bool:
    """Wait until none of them runs; False where one still does at the deadline."""
    until = time.monotonic() + deadline_s
    while any(process.is_alive() for process in processes):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _linux_start_time(pid: int) -> str | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    after_name = stat.rpartition(")")[2].split()  # the name may hold spaces and brackets
    state, threads, ticks = after_name[0], int(after_name[17]), after_name[19]
    ended = state == "X" or (state == "Z" and threads <= 1)  # with its main thread dead, the others still hold its ports and files
    return None if ended else f"{_boot()}/{ticks}"


def _boot() -> str:
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _ps_start_time(pid: int) -> str | None:
    said = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    state, _, started = said.stdout.strip().partition(" ")
    return None if not started or state.startswith("Z") else started.strip()


def _reap(pid: int, options: int = os.WNOHANG) -> None:
    try:
        ended, status = os.waitpid(pid, options)
    except ChildProcessError:
        return
    if ended:
        _exit_codes[pid] = os.waitstatus_to_exitcode(status)
