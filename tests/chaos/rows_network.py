"""A network that fails between a pipeline and its broker: a proxy on the advertised port cuts, loses, delays and splits what passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import anyio.to_thread

from schemas.topics import TRAINING
from streams.broker import Place
from tests.chaos.proxy import CLOSED, END_TXN, FAIR, Call, Felt, Hold, Network, Way
from tests.chaos.row import Happened, row
from tests.chaos.silence import answer_silence_s, now_ms, step_silence_s
from tests.chaos.stage import Stage
from tests.chaos.tiers import ProxiedKafka
from tests.flow.seen import DEADLINE_S

TIER = "behind a proxy"
CUT_S = 5.0
HOLE_S = 8.0
"""Longer than a client waits for an answer (5 s): it asks again on another connection, and what it asked first arrives late."""
RESETS, BETWEEN_S = 10, 0.5
LATENCY_S = 0.5
SINGLE_BYTES = 6
"""The length of a message, and half of what tells whose answer it is."""
STEPS = 2
AGENTS, TOKENS = 8, 100
POLL_S = 0.02


def network_of(stage: Stage) -> Network:
    """The proxies of this row's cluster."""
    assert isinstance(stage.kafka, ProxiedKafka), f"the tier {stage.row.tier!r} has no proxy"
    return stage.kafka.network


@asynccontextmanager
async def fair_again(stage: Stage) -> AsyncIterator[Network]:
    """The network, to be broken; leaving mends it, whatever happened. Roles that end meanwhile are started again, as `up` does."""
    network = network_of(stage)
    try:
        async with stage.looked_after():
            yield network
    finally:
        network.mend()


async def gone_on(stage: Stage, since_ms: int) -> Happened:
    """Wait until the loop is closed again; answers what was felt of the fault."""
    await stage.seen.more_steps(STEPS)
    silence_s, step_s = answer_silence_s(stage.seen, since_ms), step_silence_s(stage.seen, since_ms)
    return Happened(f"answers were silent for {silence_s:.1f} s, steps {step_s:.1f} s apart at most", stall_s=silence_s)


def proven(happened: Happened, felt: Counter[Felt], *, by: Felt, subject: str, least_stall_s: float) -> Happened:
    """Proof by what the proxy did to so much, and by the stall: without one of this length the fault did not happen.

    On a busy machine answers are silent without a fault, too.
    """
    fired = f"{felt[by]} {subject} {by}; {happened.fired}" if felt[by] else ""
    return replace(happened, fired=fired, least_stall_s=least_stall_s)


@row("cut the network for 5 s", tier=TIER, scene="loop")
async def cut(stage: Stage) -> Happened:
    """Every connection ends, and new ones are refused."""
    async with fair_again(stage) as network, stage.agents(AGENTS, tokens=TOKENS):
        await stage.under_way()
        since_ms, before = now_ms(), network.felt
        network.cut()
        await anyio.sleep(CUT_S)
        network.mend()
        felt = network.felt - before
        return proven(await gone_on(stage, since_ms), felt, by="refused", subject="connections were", least_stall_s=CUT_S)


@row("lose requests: a black hole on the way to the broker", tier=TIER, scene="loop")
async def requests_are_lost(stage: Stage) -> Happened:
    """For longer than clients wait. They arrive when the way opens again, as those of a zombie do."""
    return await black_hole(stage, requests=CLOSED)


@row("lose answers: a black hole on the way back", tier=TIER, scene="loop")
async def answers_are_lost(stage: Stage) -> Happened:
    """The broker does all that it is asked, and nobody hears of it: every outcome is unknown."""
    return await black_hole(stage, answers=CLOSED)


async def black_hole(stage: Stage, *, requests: Way = FAIR, answers: Way = FAIR) -> Happened:
    """One direction is closed for some seconds, with agents at work; then it is fair again, and the loop goes on."""
    async with fair_again(stage) as network, stage.agents(AGENTS, tokens=TOKENS):
        await stage.under_way()
        since_ms, before = now_ms(), network.felt
        network.change(requests=requests, answers=answers)
        await anyio.sleep(HOLE_S)
        network.mend()
        felt = network.felt - before
        return proven(await gone_on(stage, since_ms), felt, by="held back", subject="messages were", least_stall_s=HOLE_S / 2)


@row("reset all connections, again and again", tier=TIER, scene="loop")
async def resets(stage: Stage) -> Happened:
    """Each time, whatever is under way is lost in both directions."""
    broken = 0
    async with fair_again(stage) as network, stage.agents(AGENTS, tokens=TOKENS):
        await stage.under_way()
        since_ms = now_ms()
        for _ in range(RESETS):
            broken += network.reset()
            await anyio.sleep(BETWEEN_S)
        happened = await gone_on(stage, since_ms)
    return Happened(f"{broken} connections were reset; {happened.fired}" if broken >= RESETS else "", stall_s=happened.stall_s)


@row("delay everything by 500 ms", tier=TIER, scene="loop")
async def latency(stage: Stage) -> Happened:
    """Each way. An answer needs some of them; nothing is given up."""
    slow, since_ms = Way(latency_s=LATENCY_S), now_ms()
    async with fair_again(stage) as network:
        before = network.felt
        network.change(requests=slow, answers=slow)
        async with stage.agents(AGENTS, tokens=TOKENS) as work:
            await stage.under_way()
        await stage.seen.more_steps(1)
        felt = network.felt - before
        network.mend()
        assert not work.broken
        return proven(await gone_on(stage, since_ms), felt, by="delayed", subject="messages were", least_stall_s=2 * LATENCY_S)


@row("pass messages on byte by byte", tier=TIER, scene="loop")
async def byte_by_byte(stage: Stage) -> Happened:
    """No client may take what came in one read for a whole answer."""
    single, since_ms = Way(single_bytes=SINGLE_BYTES), now_ms()
    async with fair_again(stage) as network:
        before = network.felt
        network.change(requests=single, answers=single)
        async with stage.agents(AGENTS, tokens=TOKENS) as work:
            await stage.under_way()
        await stage.seen.more_steps(1)
        felt = network.felt - before
        network.mend()
        assert not work.broken
        return proven(await gone_on(stage, since_ms), felt, by="split", subject="messages were", least_stall_s=0.0)


@row("deliver a dead trainer's EndTxn into its successor's transaction", tier=TIER, scene="loop")
async def delayed_end(stage: Stage) -> Happened:
    """Fenced by its epoch, it commits nothing: neither what the dead one sent, nor what its successor has sent so far."""
    async with fair_again(stage) as network:
        late = network.hold(lambda call: call == Call(END_TXN, "trainer"))
        await caught(late)
        network.catch_no_more(late)
        stage.kill("trainer")
        successors = network.hold(lambda call: call == Call(END_TXN, "trainer"))
        stage.pipeline.crew.restart("trainer")
        await caught(successors)
        before = await training_end(stage)
        network.release(late)
        with anyio.fail_after(DEADLINE_S):
            while not late.delivered:
                await anyio.sleep(POLL_S)
        for _ in range(3):  # a broker answers in order of arrival: by then it has dealt with what was released
            assert await training_end(stage) == before, "the late EndTxn committed its successor's records"
        since_ms = now_ms()
        network.mend()
        happened = await gone_on(stage, since_ms)
    return Happened(f"the killed trainer's EndTxn was delivered into the next transaction and committed nothing; {happened.fired}")


async def caught(hold: Hold) -> None:
    """Wait for a request that is held."""
    with anyio.fail_after(DEADLINE_S):
        while not hold.calls:
            await anyio.sleep(POLL_S)


async def training_end(stage: Stage) -> int:
    """How far committed readers see `training`."""
    log = stage.pipeline.log()
    place = Place(log.name(TRAINING), 0)
    return (await log.broker.ends([place], committed=True))[place]
