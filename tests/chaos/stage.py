"""What a row plays on: a cluster, a pipeline of real processes on it, agents at work, and the ways to break them.

Whatever dies by the stage's hand is written down with its time: takeovers and the trainer's way back are measured from there.
"""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio

from infra.broker.cluster import LocalKafka
from infra.crew.member import Spec
from schemas.node import Control, NodeStatus
from schemas.session import Claim
from schemas.topics import NODES, SESSIONS
from tests.chaos.check import Ends, Kill
from tests.chaos.row import Row
from tests.flow.agents import Work, at_work
from tests.flow.harness import Pipeline
from tests.flow.seen import Key, Seen

UNDER_WAY = 3
LOOK_S = 0.5
COMMITTED = 50
"""Tokens after which an owner has kept a Position since the request began: it does so twice a second, and makes this many in one."""


@dataclass
class Stage:
    """One row's stage. `dice` are seeded for the row; `since`: where its log begins. Rows of the scene `bare` have no pipeline."""

    row: Row
    kafka: LocalKafka
    folder: Path
    dice: random.Random
    standing: Pipeline | None = None
    reading: Seen | None = None
    since: Ends = field(default_factory=dict)
    works: list[Work] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    parts_s: dict[str, float] = field(default_factory=dict)
    part_since_s: float = field(default_factory=time.monotonic)

    def lap(self, part: str) -> None:
        """What took place since the last call is a part of the row with this name."""
        now_s = time.monotonic()
        self.parts_s[part], self.part_since_s = round(now_s - self.part_since_s, 1), now_s

    @property
    def pipeline(self) -> Pipeline:
        """The processes."""
        assert self.standing is not None, f"a row of the scene {self.row.scene!r} has no pipeline"
        return self.standing

    @property
    def seen(self) -> Seen:
        """The log of the pipeline, read as it grows."""
        assert self.reading is not None, f"a row of the scene {self.row.scene!r} has no log"
        return self.reading

    @asynccontextmanager
    async def agents(self, count: int = 6, *, tokens: int = 100, turns: int = 1) -> AsyncIterator[Work]:
        """Agents at work through the gateway; leaving waits until each has its answers. What they were shown is compared with the log."""
        async with at_work(self.pipeline.url, count, tokens=tokens, turns=turns) as work:
            self.works.append(work)
            yield work

    @asynccontextmanager
    async def looked_after(self) -> AsyncIterator[None]:
        """Members that end by themselves meanwhile are started again, as `up` does; those that the row killed are not."""

        async def look() -> None:
            while True:
                self.pipeline.crew.look_after()
                await anyio.sleep(LOOK_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            yield
            tasks.cancel_scope.cancel()

    async def under_way(self, node: str | None = None, *, least: int = 1) -> list[Key]:
        """Wait until requests are in mid-generation, at `node` where given; answers which."""
        await self.seen.until(lambda: len(self.seen.running(node, least=least)) >= UNDER_WAY, "requests in mid-generation")
        return self.seen.running(node, least=least)

    async def busiest(self, *, least: int = COMMITTED) -> str:
        """Wait for an owner with requests in mid-generation; answers its name."""

        def is_busy() -> bool:
            return bool(self.seen.owners) and len(self.seen.running(self.seen.busiest(least=least), least=least)) >= UNDER_WAY

        await self.seen.until(is_busy, "requests of one owner")
        return self.seen.busiest(least=least)

    def held(self, node: str) -> set[int]:
        """Partitions that a node claimed last."""
        return {partition for partition, claim in self.seen.owners.items() if claim.node == node}

    def claimed(self, node: str) -> bool:
        """Whether a node claimed a partition since the row began."""
        claims = self.seen.all(SESSIONS, Claim)
        return any(each.record.node == node and each.offset >= self.since.get(each.partition, 0) for each in claims)

    async def taken_over(self, node: str, partitions: Iterable[int]) -> None:
        """Wait until other nodes have claimed these partitions of `node`."""
        wanted = set(partitions)
        await self.seen.until(lambda: not wanted & self.held(node), f"another worker to take the partitions of {node}")

    def holders(self) -> set[str]:
        """Nodes whose last word is that they hold partitions."""
        last = {entry.record.node: entry.record for entry in self.seen.all(NODES, NodeStatus)}
        return {name for name, status in last.items() if status.partitions and status.state != "left"}

    async def control(self, wish: Control) -> None:
        """Write an operator's wish."""
        async with self.pipeline.log().writer() as writer:
            await (await writer.send(NODES, 0, wish))

    def kill(self, member: str) -> None:
        """SIGKILL."""
        self.kills.append(Kill(member, round(self.pipeline.crew.kill(member) * 1000)))

    async def arm(self, member: str = "", latest_pass: int = 1) -> None:
        """Start a member, the row's own where none is named, to die at the row's failpoint: at which pass of it, the dice say."""
        name = member or self.row.arms
        if self.pipeline.crew.members[name].is_alive:
            self.pipeline.crew.end([name])
        await self.pipeline.restart(name, f"{self.row.failpoint}:{self.dice.randint(1, latest_pass)}")

    async def dies(self, member: str = "") -> str:
        """Wait until a member's failpoint has killed it; answers the proof.

        :raises AssertionError: it ended in another way, or not at all.
        """
        name = member or self.row.arms
        await self.pipeline.dies(name)
        self.kills.append(Kill(name, time.time_ns() // 1_000_000))
        return f"{name} died by SIGKILL at {self.row.failpoint}"

    async def reconfigure(self, member: str, **changes: object) -> None:
        """Start a member again with other settings."""
        self.pipeline.crew.end([member])
        spec = self.pipeline.specs[member]
        self.pipeline.specs[member] = Spec(member, spec.role, {**spec.settings, **changes})
        await self.pipeline.start(member)

    async def start_beside(self, member: str, name: str = "", **changes: object) -> str:
        """Start a second process with a member's settings but for `changes`; answers its name (`MEMBER-b` where none is given)."""
        name = name or f"{member}-b"
        if member == "trainer":
            self.pipeline.start_trainer(name)
            await self.pipeline.ready(name)
        else:
            spec = self.pipeline.specs[member]
            self.pipeline.specs[name] = Spec(name, spec.role, {**spec.settings, **changes})
            await self.pipeline.start(name)
        return name
