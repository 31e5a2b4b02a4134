"""A crew: several members with one log, watched together.

Invariants: a member that ends by itself with an error is started again, at most `RESTARTS` times in a row without becoming ready; leaving
the context ends every process that the crew started; what happens is told as events, never silently repaired.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from infra.crew.member import Member, Spec, end_members
from schemas.errors import SetupError
from schemas.settings import Connection

GRACE_S = 25.0
READY_S = 120.0
RESTARTS = 5


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a member: for the view and the report."""

    at_s: float
    member: str
    what: str


class Crew:
    """Made by `open_crew`. `members` by name."""

    def __init__(self, connection: Connection, tell: Callable[[Event], None]) -> None:
        self._connection = connection
        self._tell = tell
        self._held: set[str] = set()
        self._failures: dict[str, int] = {}
        self.members: dict[str, Member] = {}

    def start(self, specs: Sequence[Spec]) -> None:
        """Start members, all at once, without waiting."""
        for spec in specs:
            member = Member(spec, self._flags(), self._connection.run_dir)
            self.members[spec.name] = member
            member.start()

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
        self.members[name].start()
        self.say(name, "started again")

    def look_after(self) -> None:
        """Start again what ended with an error. To be called often.

        :raises SetupError: a member keeps ending.
        """
        for name, member in self.members.items():
            if member.is_ready:
                self._failures[name] = 0
            if member.is_alive or name in self._held or member.has_finished:
                continue
            self._failures[name] = self._failures.get(name, 0) + 1
            if self._failures[name] > RESTARTS:
                raise SetupError(f"{name} ended {RESTARTS} times in a row: {member.last_words()}")
            self.say(name, f"ended: {member.last_words()}")
            self.restart(name)

    def end(self, names: Sequence[str]) -> None:
        """End members cleanly (SIGTERM), for good."""
        self._held.update(names)
        end_members([self.members[name] for name in names], grace_s=GRACE_S)

    def say(self, name: str, what: str) -> None:
        """Tell an event."""
        self._tell(Event(time.time(), name, what))

    def _flags(self) -> list[str]:
        return [
            "--bootstrap", self._connection.address(), "--namespace", self._connection.namespace,
            "--run-dir", str(self._connection.run_dir), "--config", os.devnull,
        ]


@contextmanager
def open_crew(connection: Connection, tell: Callable[[Event], None]) -> Iterator[Crew]:
    """An empty crew. Leaving ends all its processes."""
    crew = Crew(connection, tell)
    try:
        yield crew
    finally:
        end_members(list(crew.members.values()), grace_s=GRACE_S)

