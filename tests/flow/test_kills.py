"""Each role on the path of a call is killed (SIGKILL) in mid-work and started again: nothing is lost or double. More in `tests.chaos`.

One set of processes for all tests; each mends what the one before left, and audits the whole log.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from schemas.topics import TRAJECTORIES
from tests.flow.agents import at_work
from tests.flow.harness import Pipeline, publish, require_whole, standing_pipeline
from tests.flow.seen import Key, Seen

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

UNDER_WAY = 3
COMMITTED = 50
"""Tokens after which the owner has kept a Position since the request began: it does so twice a second, and makes this many in one."""


@pytest.fixture(scope="module")
def standing(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with standing_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("kills")) as pipeline:
        yield pipeline


async def under_way(seen: Seen, node: str | None = None) -> None:
    await seen.until(lambda: len(seen.running(node)) >= UNDER_WAY, "requests in mid-generation")


def busy(seen: Seen) -> list[Key]:
    """Requests of the busiest node that would be missed if its Position had passed them."""
    return seen.running(seen.busiest(least=COMMITTED), least=COMMITTED)


async def test_gateway(pipeline: Pipeline, seen: Seen) -> None:
    async with at_work(pipeline.url) as work:
        await under_way(seen)
        pipeline.crew.kill("gateway")
        await pipeline.restart("gateway")
    assert work.broken
    assert any(not answer.is_whole for answer in work.answers)
    await require_whole(pipeline, seen, work)


async def test_rollout_owner_in_mid_generation(pipeline: Pipeline, seen: Seen) -> None:
    """Its requests go on where the log stands, under the other owner; meanwhile a version comes."""
    async with at_work(pipeline.url, agents=8, tokens=200) as work:
        await seen.until(lambda: seen.owners and len(busy(seen)) >= UNDER_WAY, "requests of one owner")
        victim = seen.busiest(least=COMMITTED)
        held = {partition for partition, claim in seen.owners.items() if claim.node == victim}
        pipeline.crew.kill(victim)
        await seen.until(lambda: all(seen.owners[each].node != victim for each in held), "the other worker to take the partitions")
        await publish(pipeline.log())
    assert not work.broken
    verdict = await require_whole(pipeline, seen, work)
    dead = [takeover for takeover in verdict.figures.takeovers if takeover.cause == "dead" and takeover.partition in held]
    assert sum(takeover.resumed_in_mid_generation for takeover in dead) >= UNDER_WAY
    assert verdict.figures.resumed_at_accepted_length
    assert any(len({token // 10_000 for token in answer.tokens}) == 2 for answer in work.answers)


async def test_scheduler_before_and_after_a_grant(pipeline: Pipeline, seen: Seen) -> None:
    """A worker dies while no scheduler runs; the next two schedulers die over its partitions; the last one finishes the work."""
    async with at_work(pipeline.url, tokens=150) as work:
        await under_way(seen)
        pipeline.crew.kill("scheduler")
        pipeline.crew.kill("rollout-1")
        for failpoint in ("scheduler.before_grant", "scheduler.after_grant"):
            await pipeline.restart("scheduler", failpoint)
            await pipeline.dies("scheduler")
        await pipeline.restart("scheduler")
    assert not work.broken
    assert {claim.node for claim in seen.owners.values()} == {"rollout-0"}
    await require_whole(pipeline, seen, work)


async def test_assembler(pipeline: Pipeline, seen: Seen) -> None:
    pipeline.crew.end(["assembler"])
    await pipeline.restart("assembler", "assembler.before_trajectory")
    await pipeline.ready("assembler")
    async with at_work(pipeline.url, tokens=50) as work:
        await pipeline.dies("assembler")
        await pipeline.restart("assembler")
    assert not work.broken
    await require_whole(pipeline, seen, work)


async def test_reward(pipeline: Pipeline, seen: Seen) -> None:
    pipeline.crew.end(["reward"])
    await pipeline.restart("reward", "reward.after_score")
    await pipeline.ready("reward")
    before = seen.count(TRAJECTORIES)
    async with at_work(pipeline.url, tokens=50) as work:
        await pipeline.dies("reward")
        await pipeline.restart("reward")
    assert seen.count(TRAJECTORIES) > before
    await require_whole(pipeline, seen, work)
