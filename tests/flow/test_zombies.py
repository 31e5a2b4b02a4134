"""Processes that are frozen (SIGSTOP) while others take their work over, and wake (SIGCONT): what they still write does not count."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.crew.member import Spec
from schemas.errors import Superseded
from schemas.session import Claim
from schemas.topics import SESSIONS
from tests.flow.agents import at_work
from tests.flow.harness import Pipeline, require_whole, standing_pipeline
from tests.flow.seen import Seen

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(600)]

UNDER_WAY = 3


@pytest.fixture(scope="module")
def standing(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with standing_pipeline(kafka_bootstrap, tmp_path_factory.mktemp("zombies")) as pipeline:
        yield pipeline


async def test_owner(pipeline: Pipeline, seen: Seen) -> None:
    """It wakes with tokens that are due, and writes them under its old epochs before it can know better."""
    async with at_work(pipeline.url) as work:
        await seen.until(lambda: seen.owners and len(seen.running(seen.busiest())) >= UNDER_WAY, "requests of one owner")
        zombie = seen.busiest()
        held = {partition: claim for partition, claim in seen.owners.items() if claim.node == zombie}
        pipeline.crew.freeze(zombie)
        await seen.until(lambda: all(seen.owners[each].node != zombie for each in held), "the other worker to take the partitions")
        fences = {partition: seen.owners[partition].epoch for partition in held}
        pipeline.crew.thaw(zombie)
    assert not work.broken
    await seen.until(lambda: stopped(pipeline, zombie), "the zombie to stop")
    await seen.until(lambda: back(seen, zombie, max(fences.values())), "the zombie to be granted partitions anew")
    verdict = await require_whole(pipeline, seen, work)
    late = [span for partition, epoch in fences.items() for span in seen.late_spans(partition, epoch)]
    assert late, "the zombie wrote nothing under its old epochs: this run proves nothing"
    assert verdict.figures.resumed_at_accepted_length


def stopped(pipeline: Pipeline, name: str) -> bool:
    """It said that partitions are no longer its own."""
    return any(line in pipeline.said(name) for line in ("lost a partition", '"released"'))


def back(seen: Seen, name: str, above: int) -> bool:
    """A node that wakes and says so gets its share again, under new epochs."""
    return any(entry.record.node == name and entry.record.epoch > above for entry in seen.all(SESSIONS, Claim))


async def test_scheduler(pipeline: Pipeline, seen: Seen) -> None:
    """While it is frozen, a second one gives a dead worker's partitions away."""
    async with at_work(pipeline.url) as work:
        await seen.until(lambda: len(seen.running()) >= UNDER_WAY, "requests in mid-generation")
        pipeline.crew.freeze("scheduler")
        pipeline.specs["scheduler-b"] = Spec("scheduler-b", "scheduler", pipeline.specs["scheduler"].settings)
        await pipeline.start("scheduler-b")
        pipeline.crew.kill("rollout-1")
        await seen.until(lambda: all(claim.node == "rollout-0" for claim in seen.owners.values()), "the other worker to take all")
        pipeline.crew.thaw("scheduler")
        assert await pipeline.exit_code("scheduler") == Superseded.exit_code
    assert Superseded.remedy in pipeline.said("scheduler")
    assert not work.broken
    await require_whole(pipeline, seen, work)
