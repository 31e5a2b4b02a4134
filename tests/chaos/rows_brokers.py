"""Brokers that die, freeze or restart, one of three or two, under a closed loop: replication 3, at least two copies in sync."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import anyio.to_thread

from infra.broker.process import await_death
from schemas.span import Span
from schemas.topics import SESSIONS
from tests.chaos.brokers import GROUPS, TRANSACTIONS, Brokers
from tests.chaos.row import Happened, row
from tests.chaos.silence import answer_silence_s, now_ms, step_silence_s
from tests.chaos.stage import Stage

TIER = "three nodes"
NODES = frozenset({1, 2, 3})
MEND_S = 120.0
GRACE_S = 40.0
"""How long a node may take to hand over what it leads and to end."""
FREEZE_S = 20.0
BELOW_S = 6.0
"""How long two of three are away."""
AGENTS, TOKENS = 12, 200
"""An answer takes four seconds on a quiet machine, and every partition has some."""
STEPS = 2
"""Made after a fault: the loop is closed again."""


@dataclass
class Cluster:
    """The cluster under a row, whole when the row begins. `sessions`: the topic's full name."""

    stage: Stage
    brokers: Brokers
    sessions: str

    async def ask(self, question: Callable[[], int]) -> int:
        """Something about the cluster."""
        return await anyio.to_thread.run_sync(question)

    async def mend(self) -> None:
        """All three nodes run, and every copy is in sync."""
        await anyio.to_thread.run_sync(self.stage.kafka.start, 3)
        await anyio.to_thread.run_sync(self.brokers.await_in_sync, 3, MEND_S)

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """Agents beside the loop's own, whose answers are long enough to be hit; leaving waits until each has its answer.

        Roles that wait for the brokers longer than their deadline end meanwhile, and are started again, as `up` does.
        """
        async with self.stage.looked_after(), self.stage.agents(AGENTS, tokens=TOKENS):
            await self.stage.under_way()
            yield

    async def goes_on(self, partitions: list[int], since_ms: int) -> None:
        """Wait for a Span in each of these partitions, and for Steps, after the fault."""

        def spoken() -> set[int]:
            return {span.partition for span in self.stage.seen.all(SESSIONS, Span) if span.timestamp_ms > since_ms}

        await self.stage.seen.until(lambda: set(partitions) <= spoken(), f"spans in partitions {partitions}")
        await self.stage.seen.more_steps(STEPS)

    def happened(self, fired: str, since_ms: int) -> Happened:
        """What is to be said of a fault, with what it cost."""
        step_s = step_silence_s(self.stage.seen, since_ms)
        return Happened(f"{fired}; steps {step_s:.1f} s apart at most", stall_s=answer_silence_s(self.stage.seen, since_ms))


async def whole_cluster(stage: Stage) -> Cluster:
    """The cluster, when an earlier row's fault is over."""
    cluster = Cluster(stage, Brokers(stage.kafka), f"{stage.pipeline.connection.namespace}sessions")
    await cluster.mend()
    return cluster


async def kill_one(cluster: Cluster, node: int, what: str) -> Happened:
    """Kill a node, wait until the others do all that it did, and bring it back."""
    led = await anyio.to_thread.run_sync(cluster.brokers.led, cluster.sessions, node)
    async with cluster.at_work():
        await anyio.to_thread.run_sync(cluster.stage.kafka.kill, node)
        since_ms = now_ms()
        await cluster.goes_on(led, since_ms)
    assert cluster.stage.kafka.running() == sorted(NODES - {node}), "the others did it, not the node that came back"
    happened = cluster.happened(f"node {node}, {what}, died by SIGKILL", since_ms)
    await cluster.mend()
    return happened


@row("kill the leader of sessions partitions", tier=TIER, scene="loop")
async def leader_dies(stage: Stage) -> Happened:
    """The node that leads most of them."""
    cluster = await whole_cluster(stage)
    led = {node: await anyio.to_thread.run_sync(cluster.brokers.led, cluster.sessions, node) for node in NODES}
    node = max(led, key=lambda number: len(led[number]))
    return await kill_one(cluster, node, f"leader of {named(led[node])}")


@row("kill the coordinator of transactions", tier=TIER, scene="loop")
async def transaction_coordinator_dies(stage: Stage) -> Happened:
    """Source, scheduler and trainer commit through it."""
    cluster = await whole_cluster(stage)
    return await kill_one(cluster, await cluster.ask(lambda: cluster.brokers.coordinator(TRANSACTIONS)), "coordinator of transactions")


@row("kill the coordinator of groups", tier=TIER, scene="loop")
async def group_coordinator_dies(stage: Stage) -> Happened:
    """Agents, assembler and reward are members; owners keep their Positions there."""
    cluster = await whole_cluster(stage)
    return await kill_one(cluster, await cluster.ask(lambda: cluster.brokers.coordinator(GROUPS)), "coordinator of groups")


@row("kill the controller", tier=TIER, scene="loop")
async def controller_dies(stage: Stage) -> Happened:
    """Whose work it is to name new leaders."""
    cluster = await whole_cluster(stage)
    return await kill_one(cluster, await cluster.ask(cluster.brokers.controller), "the controller")


@row("kill two of three brokers", tier=TIER, scene="loop")
async def two_die(stage: Stage) -> Happened:
    """With one copy left nothing becomes visible; when both are back all goes on."""
    cluster = await whole_cluster(stage)
    survivor = stage.dice.choice(sorted(NODES))
    led = await anyio.to_thread.run_sync(cluster.brokers.led, cluster.sessions, survivor)
    everything = await all_partitions(cluster)
    async with cluster.at_work():
        for node in sorted(NODES - {survivor}):
            await anyio.to_thread.run_sync(stage.kafka.kill, node)
        since_ms = now_ms()
        before = await anyio.to_thread.run_sync(cluster.brokers.ends, cluster.sessions, led)
        await anyio.sleep(BELOW_S)
        after = await anyio.to_thread.run_sync(cluster.brokers.ends, cluster.sessions, led)
        assert before == after, f"below two copies records became visible: {before} → {after}"
        await cluster.mend()
        await cluster.goes_on(everything, since_ms)
    held_s = f"nothing became visible in {named(led)} for {BELOW_S:.0f} s"
    return cluster.happened(f"all but node {survivor} died by SIGKILL; {held_s}", since_ms)


@row("freeze a broker for 20 s", tier=TIER, scene="loop")
async def one_freezes(stage: Stage) -> Happened:
    """SIGSTOP: its connections stay open, and it answers nothing. It wakes believing that it leads."""
    cluster = await whole_cluster(stage)
    led = {node: await anyio.to_thread.run_sync(cluster.brokers.led, cluster.sessions, node) for node in NODES}
    node = max(led, key=lambda number: len(led[number]))
    async with cluster.at_work():
        stage.kafka.freeze(node)
        since_ms, since_s = now_ms(), anyio.current_time()
        try:
            await cluster.goes_on(led[node], since_ms)  # while it stands still: others do what it did
            others_led_s = anyio.current_time() - since_s
            await anyio.sleep_until(since_s + FREEZE_S)
        finally:
            stage.kafka.thaw(node)
    await stage.seen.more_steps(STEPS)
    await cluster.mend()
    frozen = f"node {node}, leader of {named(led[node])}, stood still; {others_led_s:.1f} s later others had done what it did"
    return cluster.happened(frozen, since_ms)


@row("restart all three brokers in turn", tier=TIER, scene="loop")
async def rolling_restart(stage: Stage) -> Happened:
    """Each ends cleanly (SIGTERM), comes back, and catches up before the next one goes."""
    cluster = await whole_cluster(stage)
    since_ms = now_ms()
    async with cluster.at_work():
        for node in sorted(NODES):
            await anyio.to_thread.run_sync(end, stage, node)
            await cluster.mend()
    await stage.seen.more_steps(STEPS)
    return cluster.happened("nodes 1, 2 and 3 ended by SIGTERM and came back", since_ms)


def end(stage: Stage, node: int) -> None:
    """End one node in order: it hands over what it leads."""
    state = stage.kafka.state
    assert state is not None
    process = state.nodes[node - 1].process
    assert process is not None
    assert process.signal(signal.SIGTERM)
    assert await_death([process], deadline_s=GRACE_S), f"node {node} did not end within {GRACE_S:.0f} s"


async def all_partitions(cluster: Cluster) -> list[int]:
    """The partitions of `sessions`."""
    return sorted(await anyio.to_thread.run_sync(cluster.brokers.copies, cluster.sessions))


def named(partitions: list[int]) -> str:
    """Partitions of `sessions`, in words."""
    return f"sessions {', '.join(map(str, partitions))}" if partitions else "no partition of sessions"
