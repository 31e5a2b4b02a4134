"""One process of the crew: a role with its settings, started by `seamlessflow run`, its output in a log file.

Invariant: a process is addressed by pid and start time, so that a recycled pid is never signalled.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.broker.process import Process, end_all, spawn
from schemas.errors import NoProgress, SetupError

POLL_S = 0.02
TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class Spec:
    """What to start: `name` is unique in the crew, `settings` go to the role as `--set name=value`."""

    name: str
    role: str
    settings: Mapping[str, object] = field(default_factory=dict)


class Member:
    """A place in the crew, and the process that fills it at the moment."""

    def __init__(self, spec: Spec, flags: list[str], run_dir: Path) -> None:
        self.spec = spec
        self._flags = flags
        self.log = run_dir / "logs" / f"{spec.name}.log"
        self.ready_file = run_dir / "ready" / f"{spec.name}.json"
        self.process: Process | None = None
        self.starts = 0

    @property
    def is_alive(self) -> bool:
        """Its process runs."""
        return self.process is not None and self.process.is_alive()

    @property
    def has_finished(self) -> bool:
        """Its process came to its own end, without an error."""
        return self.process is not None and self.process.exit_code() == 0

    @property
    def exit_code(self) -> int | None:
        """How its process ended (negative: by that signal); None while it runs."""
        return None if self.process is None else self.process.exit_code()

    @property
    def is_ready(self) -> bool:
        """The process that runs has said that it can work."""
        return self.is_alive and self.ready_file.exists()

    def start(self) -> None:
        """Start the process. Its readiness of before is forgotten.

        :raises SetupError: it cannot be started.
        """
        for folder in (self.log.parent, self.ready_file.parent):
            folder.mkdir(parents=True, exist_ok=True)
        self.ready_file.unlink(missing_ok=True)
        self.process = spawn(self._command(), self.log)
        self.starts += 1

    def signal(self, number: signal.Signals) -> float:
        """Send a signal; answers when (seconds since 1970).

        :raises SetupError: the process does not run.
        """
        if self.process is None or not self.process.signal(number):
            raise SetupError(f"{self.spec.name} does not run")
        return time.time()

    def await_ready(self, deadline_s: float) -> None:
        """Wait until it can work.

        :raises SetupError: it ended; the end of its log is in the message.
        :raises NoProgress: it is not ready within the deadline.
        """
        until = time.monotonic() + deadline_s
        while not self.ready_file.exists():
            if not self.is_alive:
                raise SetupError(f"{self.spec.name} ended before it was ready: {self.cause_of_end()}")
            if time.monotonic() > until:
                raise NoProgress(f"{self.spec.name} was not ready within {deadline_s:.0f} s; its log is {self.log}")
            time.sleep(POLL_S)

    def cause_of_end(self) -> str:
        """Why its process ended: the signal, or what it said last."""
        code = self.exit_code
        return f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else self.last_words()

    def last_words(self) -> str:
        """The last line of its log that says something."""
        try:
            with self.log.open("rb") as handle:
                handle.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                lines = handle.read().decode(errors="replace").strip().splitlines()
        except FileNotFoundError:
            return "it wrote nothing"
        return lines[-1] if lines else "it wrote nothing"

    def _command(self) -> list[str]:
        pairs = [f"--set={name}={_as_text(value)}" for name, value in self.spec.settings.items() if value is not None]
        return [
            sys.executable, "-m", "infra.cli.main", "run", self.spec.role, *self._flags, "--ready-file", str(self.ready_file), *pairs
        ]


def _as_text(value: object) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


def end_members(members: list[Member], *, grace_s: float) -> None:
    """End all at once: SIGTERM, and SIGKILL after `grace_s` seconds."""
    end_all([member.process for member in members if member.process is not None], grace_s=grace_s)
