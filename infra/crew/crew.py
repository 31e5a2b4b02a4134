"""A crew: several members with one log, watched together.

Invariants: a member that ends by itself with an error is started again, after a pause that grows (`infra.crew.restarts`); leaving the
context ends every process that the crew started; what happens is told as events, never silently repaired.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from infra.crew.member import Member, Spec, end_members
from infra.crew.restarts import Restarts
from infra.crew.roll import end_crew, require_vacant, strike_roll, write_roll
from schemas.errors import SetupError
from schemas.settings import Connection

GRACE_S = 25.0
READY_S = 120.0
NO_FILE = Path(os.devnull)
"""Members take their settings from the crew alone."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a member: for the view and the report."""

    at_s: float
    member: str
    what: str


class Crew:
    """Made by `open_crew`. `members` by name."""

    def __init__(self, connection: Connection, tell: Callable[[Event], None], config: Path = NO_FILE) -> None:
        self._connection = connection
        self._tell = tell
        self._config = config
        self._held: set[str] = set()
        self._down: set[str] = set()
        self._restarts: dict[str, Restarts] = {}
        self.members: dict[str, Member] = {}

    def start(self, specs: Sequence[Spec]) -> None:
        """Start members, all at once, without waiting."""
        for spec in specs:
            member = Member(spec, self._flags(), self._connection.run_dir)
            self.members[spec.name] = member
            self._start(member)

    def await_ready(self, names: Sequence[str], deadline_s: float = READY_S) -> None:
        """Wait until these can work.

        :raises SetupError: one ended.
        :raises NoProgress: one is not ready within the deadline.
        """
        for name in names:
            self.members[name].await_ready(deadline_s)

    def kill(self, name: str) -> float:
        """SIGKILL, and hold the place empty until `restart`; answers when (seconds since 1970)."""
        self._held.add(name)
        at_s = self.members[name].signal(signal.SIGKILL)
        self.say(name, "killed (SIGKILL)")
        return at_s

    def freeze(self, name: str) -> None:
        """SIGSTOP."""
        self.members[name].signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        self.members[name].signal(signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Start a member again."""
        self._held.discard(name)
        self._start(self.members[name])
        self.say(name, "started again")

    def look_after(self) -> None:
        """Start again what ended with an error, when its pause is over. To be called often.

        :raises SetupError: a member keeps ending, or ended with an error that trying again does not mend.
        """
        now_s = time.monotonic()
        for name, member in self.members.items():
            restarts = self._restarts.setdefault(name, Restarts())
            if member.is_ready:
                restarts.works(now_s)
            if member.is_alive or name in self._held:
                continue
            if name not in self._down:
                self._down.add(name)
                self._take_down(name, member, restarts, now_s)
            elif now_s >= restarts.due_s:
                self.restart(name)

    def end(self, names: Sequence[str]) -> None:
        """End members cleanly (SIGTERM), for good."""
        self._held.update(names)
        end_members([self.members[name] for name in names], grace_s=GRACE_S)

    def say(self, name: str, what: str) -> None:
        """Tell an event."""
        self._tell(Event(time.time(), name, what))

    def _start(self, member: Member) -> None:
        member.start()
        self._down.discard(member.spec.name)
        running = {name: each.process for name, each in self.members.items() if each.process is not None}
        write_roll(self._connection.run_dir, running)

    def _take_down(self, name: str, member: Member, restarts: Restarts, now_s: float) -> None:
        """Note that a member ended, and decide what follows."""
        if member.has_finished:
            self._held.add(name)
            self.say(name, "finished")
            return
        verdict = restarts.ended(member.exit_code, now_s)
        if verdict == "give up":
            raise SetupError(f"{name} ended {restarts.failures} times in a row: {member.cause_of_end()}")
        self.say(name, f"ended: {member.cause_of_end()}")
        if verdict == "rest":
            self._held.add(name)

    def _flags(self) -> list[str]:
        blobs = ["--blobs", self._connection.blobs] if self._connection.blobs else []
        return [
            "--bootstrap", self._connection.address(), "--namespace", self._connection.namespace,
            "--run-dir", str(self._connection.run_dir), *blobs, "--config", str(self._config),
        ]


@contextmanager
def open_crew(connection: Connection, tell: Callable[[Event], None], config: Path = NO_FILE) -> Iterator[Crew]:
    """An empty crew, whose members read their settings from `config` where the crew gives none. Leaving ends all its processes.

    Members that an earlier crew of this run folder left behind are ended first.

    :raises SetupError: another process runs a crew in this run folder.
    """
    require_vacant(connection.run_dir)
    crew = Crew(connection, tell, config)
    for name in end_crew(connection.run_dir):
        crew.say(name, "was left behind by an earlier run: ended")
    try:
        yield crew
    finally:
        end_members(list(crew.members.values()), grace_s=GRACE_S)
        strike_roll(connection.run_dir)
