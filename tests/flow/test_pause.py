"""An operator pauses in mid-generation and resumes: agents wait, and the next span starts where the log stands."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from schemas.node import Control, NodeStatus
from schemas.topics import NODES, SESSIONS
from tests.flow.agents import at_work
from tests.flow.harness import WORKERS, Pipeline, require_whole, standing_pipeline
from tests.flow.seen import Seen, watching

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

AGENTS = 6
UNDER_WAY = 3
PAUSE_S = 4.0


@pytest.fixture
def pipeline(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with standing_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("pause")) as pipeline:
        yield pipeline


async def command(pipeline: Pipeline, control: Control) -> None:
    async with pipeline.log().writer() as writer:
        await (await writer.send(NODES, 0, control))


def holders(seen: Seen) -> set[str]:
    """Nodes whose last word is that they hold partitions."""
    last = {entry.record.node: entry.record for entry in seen.all(NODES, NodeStatus)}
    return {name for name in WORKERS if last[name].partitions}


async def test_pause_in_mid_generation_and_resume(pipeline: Pipeline) -> None:
    async with watching(pipeline.log()) as seen:
        async with at_work(pipeline.url, AGENTS) as work:
            await seen.until(lambda: len(seen.running()) >= UNDER_WAY, "requests in mid-generation")
            await command(pipeline, Control(command="pause", reason="test"))
            await seen.until(lambda: not holders(seen), "both workers to let go")
            await seen.until(lambda: len(seen.running(least=0)) == AGENTS, "every agent to wait for an answer")
            waiting, written = seen.running(), seen.count(SESSIONS)
            before = max(ledger.epoch for ledger in seen.ledgers.values())  # partitions may have moved for balance, too
            await anyio.sleep(PAUSE_S)  # not a wait: this long, agents are to be held and nothing is to be written
            assert len(waiting) >= UNDER_WAY
            assert seen.running() == waiting
            assert seen.count(SESSIONS) == written
            await command(pipeline, Control(command="resume"))
        assert not work.broken
        verdict = await require_whole(pipeline, seen, work)
    moved = [takeover for takeover in verdict.figures.takeovers if takeover.cause == "moved" and takeover.epoch > before]
    assert sum(takeover.resumed_in_mid_generation for takeover in moved) == len(waiting)
    assert all(takeover.at_accepted_length for takeover in moved)
