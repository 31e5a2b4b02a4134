"""The roles on the path of a call, killed in mid-work and started again."""

from __future__ import annotations

from schemas.grant import Grant
from schemas.node import Control
from schemas.topics import GRANTS
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage


@row("kill the gateway in mid-stream")
async def gateway_dies(stage: Stage) -> Happened:
    """Agents call again, as real ones do, and are answered from the log."""
    async with stage.agents() as work:
        await stage.under_way()
        stage.kill("gateway")
        await stage.pipeline.restart("gateway")
    cut = sum(not answer.is_whole for answer in work.answers)
    return Happened(f"gateway died by SIGKILL; {work.broken} calls broke, {cut} in mid-stream" if work.broken and cut else "")


@row("kill the scheduler before it grants", failpoint="scheduler.before_grant", arms="scheduler")
@row("kill the scheduler after it granted", failpoint="scheduler.after_grant", arms="scheduler")
async def scheduler_dies_at(stage: Stage) -> Happened:
    """A worker dies while no scheduler runs; the next scheduler dies over its partitions; the last one finishes the work."""
    async with stage.agents(tokens=150) as work:
        await stage.under_way()
        stage.kill("rollout-1")
        await stage.arm()
        fired = await stage.dies()
        await stage.pipeline.restart("scheduler")
    assert not work.broken
    assert {claim.node for claim in stage.seen.owners.values()} == {"rollout-0"}
    return Happened(fired)


@row("kill the scheduler in mid-pause")
async def scheduler_dies_in_a_pause(stage: Stage) -> Happened:
    """The next one finds the pause in the log and keeps it, until it is lifted."""
    async with stage.agents(tokens=300) as work:
        await stage.under_way()
        before = max((entry.offset for entry in stage.seen.all(GRANTS, Grant)), default=-1)
        await stage.control(Control(command="pause", reason="chaos"))
        await stage.seen.until(lambda: any(not grant.node for grant in revoked(stage, before)), "a partition to be revoked")
        stage.kill("scheduler")
        await stage.pipeline.restart("scheduler")
        await stage.seen.until(lambda: not stage.holders(), "every worker to let go")
        held = len(stage.seen.running())
        await stage.control(Control(command="resume"))
    assert not work.broken
    return Happened(f"scheduler died by SIGKILL in a pause that held {held} calls" if held else "")


def revoked(stage: Stage, above: int) -> list[Grant]:
    """Grants behind an offset."""
    return [entry.record for entry in stage.seen.all(GRANTS, Grant) if entry.offset > above]


@row("kill the assembler before it writes a trajectory", failpoint="assembler.before_trajectory", arms="assembler")
@row("kill the assembler after it wrote a trajectory", failpoint="assembler.after_trajectory", arms="assembler")
@row("kill the reward worker after it wrote a score", failpoint="reward.after_score", arms="reward")
async def group_member_dies_at(stage: Stage) -> Happened:
    """What it had not committed is done again: a repetition that no reader counts."""
    await stage.arm(latest_pass=3)
    async with stage.agents(tokens=50) as work:
        fired = await stage.dies()
        await stage.pipeline.restart(stage.row.arms)
    assert not work.broken
    return Happened(fired)
