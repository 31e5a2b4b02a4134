"""Processes that are frozen (SIGSTOP) while others take their work over, and wake (SIGCONT): what they still write does not count."""

from __future__ import annotations

from schemas.errors import Superseded
from schemas.session import Claim
from schemas.topics import SESSIONS, TASKS
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage


@row("a frozen rollout worker wakes after its successor took over")
async def worker_wakes(stage: Stage) -> Happened:
    """It wakes with tokens that are due, and writes them under its old epochs before it can know better."""
    seen = stage.seen
    async with stage.agents(tokens=150) as work:
        zombie = await stage.busiest(least=1)
        held = {partition: seen.owners[partition].epoch for partition in stage.held(zombie)}
        stage.pipeline.crew.freeze(zombie)
        await stage.taken_over(zombie, held)
        fences = {partition: seen.owners[partition].epoch for partition in held}
        stage.pipeline.crew.thaw(zombie)
    assert not work.broken
    newest = max(fences.values())
    await seen.until(
        lambda: any(each.record.node == zombie and each.record.epoch > newest for each in seen.all(SESSIONS, Claim)),
        "the zombie to be granted partitions anew",
    )
    late = sum(len(seen.late_spans(partition, epoch)) for partition, epoch in fences.items())
    return Happened(f"{zombie} wrote {late} spans under epochs that had ended" if late else "")


@row("a frozen scheduler wakes after its successor took over")
async def scheduler_wakes(stage: Stage) -> Happened:
    """While it is frozen, a second one gives a dead worker's partitions away."""
    async with stage.agents(tokens=150) as work:
        await stage.under_way()
        stage.pipeline.crew.freeze("scheduler")
        await stage.start_beside("scheduler")
        held = stage.held("rollout-1")
        stage.kill("rollout-1")
        await stage.taken_over("rollout-1", held)
        fired = await superseded(stage, "scheduler")
    assert not work.broken
    return Happened(fired)


@row("a frozen source wakes after its successor took over", scene="loop")
async def source_wakes(stage: Stage) -> Happened:
    stage.pipeline.crew.freeze("source")
    await stage.start_beside("source")
    before = await tasks_in_the_log(stage)
    await stage.seen.until(lambda: stage.seen.count(TASKS) > before, "tasks of the second source")
    fired = await superseded(stage, "source")
    await stage.seen.more_steps(2)
    return Happened(fired)


async def tasks_in_the_log(stage: Stage) -> int:
    """How many Tasks stand there now: with a frozen source all its own, whether or not they were seen yet, and those of the second one."""
    log = stage.pipeline.log()
    async with log.follow_all(TASKS) as reader:
        return len(await reader.read_to_end([place.partition for place in await log.places(TASKS)]))


@row("a frozen trainer wakes after its successor took over", scene="loop")
async def trainer_wakes(stage: Stage) -> Happened:
    stage.pipeline.crew.freeze("trainer")
    await stage.start_beside("trainer")
    await stage.seen.more_steps(2)
    fired = await superseded(stage, "trainer")
    await stage.seen.more_steps(2)
    return Happened(fired)


async def superseded(stage: Stage, member: str) -> str:
    """Wake a member, and wait until it ends because somebody else does its work; answers the proof."""
    stage.pipeline.crew.thaw(member)
    assert await stage.pipeline.exit_code(member) == Superseded.exit_code, stage.pipeline.crew.members[member].last_words()
    return f"{member} ended with code {Superseded.exit_code} when it woke"


@row("a frozen assembler wakes after its successor took over")
async def assembler_wakes(stage: Stage) -> Happened:
    """Its group waits for its session to time out; the successor writes what it had not acknowledged; it wakes, and rejoins."""
    async with stage.agents(tokens=50) as work:
        await stage.under_way()
        stage.pipeline.crew.freeze("assembler")
    before = len(stage.seen.trajectories())
    await stage.start_beside("assembler")
    await stage.seen.until(lambda: not stage.seen.unsettled(), "the successor's Trajectories")
    stage.pipeline.crew.thaw("assembler")
    after = len(stage.seen.trajectories())
    async with stage.agents(tokens=50) as more:
        pass
    assert not work.broken + more.broken
    return Happened(f"the successor wrote {after - before} trajectories of the frozen one" if after > before else "")
