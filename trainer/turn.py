"""When a trainer may step: its own view of the Roles of the nodes that it steps on.

A trainer without hosts steps whenever it has a batch. One that steps on nodes which generate, too, waits until one of them says `train`
by its last Role.

Invariants:
- no step begins after a Role was read by which no host trains;
- `seen` does not pass what was read when a running step began, so whoever waits for this trainer to have seen a Role waits for the end of
  every step that began without it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog

from schemas.grant import Role
from schemas.record import Record
from schemas.topics import GRANTS
from streams.codec import Entry
from streams.failpoint import failpoint
from streams.log import Log
from streams.table import Table, open_table

__all__ = ["Turn", "may_step", "open_turn"]

REPORT_S = 30.0
"""After waiting so long, say again what for."""
READ_S = 1.0

logger = structlog.get_logger()


def may_step(rows: Mapping[bytes, Entry[Record]], hosts: Sequence[str]) -> bool:
    """Whether the newest Role of one of `hosts` in the table of `grants` lets a step begin. All of a gang turn in one transaction."""
    roles = (rows.get(Role(node=host, role="train").key()) for host in hosts)
    return any(
        entry is not None and isinstance(entry.record, Role) and entry.record.role == "train" and not entry.record.asleep
        for entry in roles
    )


@dataclass(slots=True)
class Turn:
    """Made by `open_turn`. `changed` is set when there is something to say: a Role was read, a wait or a step began or ended."""

    hosts: Sequence[str] = ()
    grants: Table | None = None
    changed: anyio.Event = field(default_factory=anyio.Event)
    is_stepping: bool = False
    is_waiting: bool = False
    _seen_at_begin: int = 0

    @property
    def seen(self) -> int:
        """The next offset of `grants` that counts as not seen; 0 without hosts."""
        if self.grants is None:
            return 0
        return self._seen_at_begin if self.is_stepping else self.grants.position

    @property
    def cause(self) -> str:
        """What it waits for, for people; empty where it does not."""
        return f"a batch waits for {' or '.join(self.hosts)} to be given the role train" if self.is_waiting else ""

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Wait until a step may begin; within the context it runs. Without hosts there is nothing to wait for."""
        await self._wait()
        self.is_stepping, self._seen_at_begin = True, self.grants.position if self.grants else 0
        self.tell()
        if self.hosts:
            failpoint("trainer.granted")
        try:
            yield
        finally:
            self.is_stepping = False
            self.tell()

    async def follow(self) -> None:
        """Keep the table of `grants`."""
        while self.grants is not None:
            entries = await self.grants.update(timeout_s=READ_S)
            if any(isinstance(entry.record, Role) and entry.record.node in self.hosts for entry in entries):
                self.tell()

    def tell(self) -> None:
        """Wake those that wait for `changed`."""
        self.changed.set()
        self.changed = anyio.Event()

    async def _wait(self) -> None:
        if self._may_step():
            return
        self.is_waiting = True
        self.tell()
        try:
            while not self._may_step():
                with anyio.move_on_after(REPORT_S) as limit:
                    await self.changed.wait()
                if limit.cancelled_caught:
                    logger.info("waiting", cause=self.cause)
        finally:
            self.is_waiting = False

    def _may_step(self) -> bool:
        return self.grants is None or may_step(self.grants.rows, self.hosts)


@asynccontextmanager
async def open_turn(log: Log, hosts: Sequence[str]) -> AsyncIterator[Turn]:
    """The turn of a trainer that steps on these nodes, caught up with `grants`; of any other one without `hosts`."""
    if not hosts:
        yield Turn()
        return
    async with open_table(log, GRANTS) as grants, anyio.create_task_group() as tasks:
        turn = Turn(tuple(hosts), grants)
        tasks.start_soon(turn.follow)
        yield turn
        tasks.cancel_scope.cancel()
