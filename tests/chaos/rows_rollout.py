"""Rollout workers that die in mid-work: another owner goes on where the log stands, and agents notice nothing but silence."""

from __future__ import annotations

from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.harness import publish

VICTIM = "rollout-1"
LATEST_PASS = {"rollout.after_poll": 9, "rollout.before_own_claim": 2, "rollout.mid_span": 20}
"""The dice choose at which pass the failpoint kills, up to this one; 3 where none is given."""


@row("kill a rollout worker after its closing span stands in the log", failpoint="rollout.after_closing_span")
@row("kill a rollout worker before the closing span's acknowledgement", failpoint="rollout.closing_span_sent")
@row("kill a rollout worker before its closing span", failpoint="rollout.before_closing_span")
@row("kill a rollout worker in mid-span", failpoint="rollout.mid_span")
@row("kill a rollout worker after a poll", failpoint="rollout.after_poll")
async def worker_dies_at(stage: Stage) -> Happened:
    failpoint = stage.row.failpoint
    await stage.restart_armed(VICTIM, f"{failpoint}:{stage.dice.randint(1, LATEST_PASS.get(failpoint, 3))}")
    await stage.seen.until(lambda: stage.held(VICTIM), "its share of the partitions")
    async with stage.agents(8, tokens=60, turns=2) as work:
        fired = await stage.dies(VICTIM)
    assert not work.broken
    return Happened(fired)


@row("kill a rollout worker before it reads its own Claim", failpoint="rollout.before_own_claim")
async def worker_dies_before_its_claim(stage: Stage) -> Happened:
    """It dies between its Claims; whoever follows claims again. Agents are at work meanwhile."""
    async with stage.agents(8) as work:
        await stage.under_way()
        await stage.restart_armed(VICTIM, f"{stage.row.failpoint}:{stage.dice.randint(1, 2)}")
        fired = await stage.dies(VICTIM)
    assert not work.broken
    return Happened(fired)


@row("kill a busy rollout worker while a version comes")
async def busy_worker_dies(stage: Stage) -> Happened:
    """Its requests go on under the other owner, across the version: one answer holds tokens of two versions."""
    async with stage.agents(8, tokens=200) as work:
        victim = await stage.busiest()
        held = stage.held(victim)
        stage.kill(victim)
        await stage.taken_over(victim, held)
        await publish(stage.pipeline.log())
    assert not work.broken
    spanning = sum(len({token // 10_000 for token in answer.tokens}) == 2 for answer in work.answers)
    return Happened(f"{victim} died by SIGKILL; {spanning} answers hold two versions" if spanning else "")
