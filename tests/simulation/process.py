"""A role as one simulated process: it is started, killed, frozen, thawed and asked to stop; a new start is a new incarnation.

Invariants: a killed process writes nothing more and its memory is gone, but the log keeps what it had sent; a frozen one does nothing until
it thaws; whatever ends a role that is no fault of its surroundings is a violation.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from schemas.errors import BrokerUnavailable, NoProgress, OutcomeUnknown, Superseded
from streams.log import Log
from streams.service import Role, Watch
from tests.simulation.cluster import Cluster
from tests.simulation.connection import Connection, ProcessDied

NAMESPACE = "sim."

EXPECTED = (Superseded, BrokerUnavailable, OutcomeUnknown, NoProgress)
"""How a role may end under faults: its supervisor starts it again."""


class Surroundings(Protocol):
    """What a process needs of the world."""

    seed: str
    cluster: Cluster
    tasks: TaskGroup
    violations: list[str]

    def strike(self, kind: str) -> None:
        """A fault of this kind struck."""
        ...

    def ended(self, process: Process) -> None:
        """A process ended by itself."""
        ...


class Address(Protocol):
    """What others hold of a process besides the log."""

    def break_all(self) -> None:
        """The process died."""
        ...

    def hold(self) -> None:
        """It is frozen: nobody is answered."""
        ...

    def release(self) -> None:
        """It thaws."""
        ...


class Nowhere(Address):
    """A process that nobody calls."""

    def break_all(self) -> None:
        """Nothing breaks."""

    def hold(self) -> None:
        """Nobody waits."""

    def release(self) -> None:
        """Nobody waited."""


@dataclass
class Life:
    """One incarnation: its connection, and the scope of all its tasks."""

    connection: Connection
    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    is_frozen: bool = False


@dataclass
class Process:
    """`slot` names what it does: one living process is enough in each. `made` gives its role; `address` is where others reach it."""

    name: str
    slot: str
    made: Callable[[], Role]
    world: Surroundings
    address: Address = field(default_factory=Nowhere)
    is_guest: bool = False
    life: Life | None = None
    lives: int = 0

    @property
    def role(self) -> str:
        """The role's name: the slot's without its number."""
        return self.slot.partition("-")[0]

    @property
    def is_awake(self) -> bool:
        """It lives and is not frozen."""
        return self.life is not None and not self.life.is_frozen

    def start(self) -> None:
        """Begin a new life, unless one is there."""
        if self.life is not None:
            return
        self.lives += 1
        chance = random.Random(f"{self.world.seed} {self.name} {self.lives}")
        self.life = Life(Connection(self.world.cluster, chance, self))
        self.world.cluster.note(f"{self.name} starts")
        self.world.tasks.start_soon(self._live, self.life)

    def kill(self) -> None:
        """End it without a last word."""
        if self.life is None:
            return
        life, self.life = self.life, None
        self.world.cluster.note(f"{self.name} is killed")
        self.world.strike(f"kill {self.role}")
        self.address.break_all()
        life.connection.cut()
        life.scope.cancel()

    def stop(self) -> None:
        """Ask it to end: it says goodbye."""
        if self.life is not None:
            self.world.cluster.note(f"{self.name} is stopped")
            self.world.strike("leave")
            self.life.scope.cancel()

    def freeze(self) -> None:
        """Stop it between two calls."""
        if self.is_awake and self.life is not None:
            self.world.cluster.note(f"{self.name} is frozen")
            self.world.strike(f"freeze {self.role}")
            self.life.is_frozen = True
            self.life.connection.freeze()
            self.address.hold()

    def thaw(self) -> None:
        """Let it go on."""
        if self.life is not None and self.life.is_frozen:
            self.world.cluster.note(f"{self.name} thaws")
            self.life.is_frozen = False
            self.life.connection.thaw()
            self.address.release()

    async def _live(self, life: Life) -> None:
        log = Log(life.connection, NAMESPACE, self.role)
        try:
            with life.scope:
                await self.made()(log, Watch(), task_status=anyio.TASK_STATUS_IGNORED)
        except* EXPECTED as group:
            self._ended(life, repr(first(group)))
        except* ProcessDied:
            pass
        except* Exception as group:  # whatever else ends a role is what this simulation looks for
            if not life.connection.is_cut:
                self.world.violations.append(f"{self.name} ended with {first(group)!r}")
            self._ended(life, repr(first(group)))
        else:
            self._ended(life, "by itself")

    def _ended(self, life: Life, how: str) -> None:
        if self.life is life:
            self.world.cluster.note(f"{self.name} ended: {how}")
            self.life = None
            self.address.break_all()
            life.connection.cut()
            self.world.ended(self)

    def struck(self, kind: str) -> None:
        """A fault of its connection struck."""
        self.world.cluster.note(f"{self.name}: {kind}")
        self.world.strike(kind)


def first(group: BaseException) -> BaseException:
    """The first error of a task group's: the others are its consequences."""
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
