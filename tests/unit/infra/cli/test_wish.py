"""`pause`, `resume`, `drain`, `undrain` against a real scheduler on the broker in memory: what was wished is in the log when they end."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from infra.cli.wish import carry_out
from schemas.errors import NoProgress, UsageError
from schemas.grant import Grant
from schemas.node import Control, NodeStatus
from schemas.topics import GRANTS, NODES
from streams.log import Log
from streams.memory import MemoryBroker
from streams.table import open_table
from streams.topics import ensure_topics
from tests.unit.workers.running import NAMESPACE, append, entries, running
from workers.scheduler.service import role
from workers.scheduler.settings import SchedulerSettings

pytestmark = pytest.mark.anyio

PARTITIONS = 4
WAIT_S = 20.0


def control(command: str, node: str = "", reason: str = "") -> Control:
    return Control(command=command, node=node, reason=reason)  # type: ignore[arg-type]


def owners(log: Log) -> dict[int, str]:
    """Partition → node, by plain reading of the grants."""
    return {entry.record.partition: entry.record.node for entry in entries(log, GRANTS, Grant)}


def controls(log: Log) -> list[str]:
    return [entry.record.command for entry in entries(log, NODES, Control)]


async def wall_clock_log() -> Log:
    """Stamped like Kafka's: an operator compares the stamps with the time of day."""
    broker = MemoryBroker(clock=time.time)
    await ensure_topics(broker, NAMESPACE, PARTITIONS)
    return Log(broker, NAMESPACE, "test")


@asynccontextmanager
async def fleet(*nodes: str) -> AsyncIterator[Log]:
    """A scheduler, and nodes that report what the grants give them."""
    log = await wall_clock_log()
    async with running(role(SchedulerSettings(tick_s=0.05)), log), anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(obedient_node, log, node)
        if nodes:
            await carry_out(log, control("resume"), WAIT_S)
        yield log
        tasks.cancel_scope.cancel()


async def obedient_node(log: Log, node: str) -> None:
    """Reports, twenty times a second, exactly the partitions that the grants give it."""
    async with open_table(log, GRANTS) as grants:
        while True:
            newest = [entry.record for entry in grants.rows.values() if isinstance(entry.record, Grant)]
            held = sorted(grant.partition for grant in newest if grant.node == node)
            said = NodeStatus(
                node=node, incarnation=node, tags=["rollout"], state="serving", partitions=held, grants_seen=grants.position
            )  # fmt: skip
            append(log, NODES, 0, said)
            await grants.update(timeout_s=0.05)


async def test_pause_ends_when_nobody_owns_anything_and_resume_when_everything_is_owned() -> None:
    async with fleet("a", "b") as log:
        assert set(owners(log).values()) == {"a", "b"}
        assert await carry_out(log, control("pause", reason="rack move"), WAIT_S) == "paused: none of 4 partitions has an owner"
        assert set(owners(log).values()) == {""}
        assert await carry_out(log, control("resume"), WAIT_S) == "resumed: 4 partitions are owned by a, b"
        assert set(owners(log).values()) == {"a", "b"}


async def test_a_drained_node_owns_nothing_and_holds_nothing_until_it_is_undrained() -> None:
    async with fleet("a", "b") as log:
        assert await carry_out(log, control("drain", "a"), WAIT_S) == "drained: a owns nothing; 4 partitions are owned by b"
        assert set(owners(log).values()) == {"b"}
        assert [entry.record.partitions for entry in entries(log, NODES, NodeStatus) if entry.record.node == "a"][-1] == []
        assert (await carry_out(log, control("undrain", "a"), WAIT_S)).startswith("undrained: a owns ")
        assert "a" in owners(log).values()


async def test_a_wish_that_stands_is_not_written_again() -> None:
    async with fleet("a") as log:
        before = controls(log)
        assert before == []  # nothing was paused, so `resume` had nothing to say
        for _ in range(2):
            await carry_out(log, control("pause"), WAIT_S)
        for _ in range(2):
            await carry_out(log, control("resume"), WAIT_S)
        assert controls(log) == ["pause", "resume"]


async def test_an_unknown_node_is_named_with_those_there_are() -> None:
    async with fleet("a", "b") as log:
        with pytest.raises(UsageError, match="there is no rollout node 'c'; there are a, b"):
            await carry_out(log, control("drain", "c"), WAIT_S)
        assert controls(log) == []


async def test_a_wish_without_a_scheduler_stands_and_the_wait_ends_with_the_cause() -> None:
    log = await wall_clock_log()
    append(log, GRANTS, 0, Grant(partition=0, node="a", incarnation="a"))
    with pytest.raises(NoProgress, match=r"1 of 4 partitions have an owner after 0\.2 s: no scheduler is at work"):
        await carry_out(log, control("pause"), 0.2)
    assert controls(log) == ["pause"]


async def test_a_resume_without_nodes_says_so() -> None:
    async with fleet() as log:
        with pytest.raises(NoProgress, match=r"4 of 4 partitions have no owner after 0\.5 s: no node serves"):
            await carry_out(log, control("resume"), 0.5)
