"""Rollout workers that die in mid-work: another owner goes on where the log stands, and agents notice nothing but silence."""

from __future__ import annotations

from functools import partial

from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.harness import publish

VICTIM = "rollout-1"
LATEST_PASS = {"rollout.after_poll": 9, "rollout.mid_span": 20}
"""The dice choose at which pass the failpoint kills, up to this one; 3 where none is given."""

LEAVES = 4

worker_row = partial(row, arms=VICTIM)


@worker_row("kill a rollout worker after its closing span stands in the log", failpoint="rollout.after_closing_span")
@worker_row("kill a rollout worker before the closing span's acknowledgement", failpoint="rollout.closing_span_sent")
@worker_row("kill a rollout worker before its closing span", failpoint="rollout.before_closing_span")
@worker_row("kill a rollout worker in mid-span", failpoint="rollout.mid_span")
@worker_row("kill a rollout worker after a poll", failpoint="rollout.after_poll")
async def worker_dies_at(stage: Stage) -> Happened:
    await stage.arm(latest_pass=LATEST_PASS.get(stage.row.failpoint, 3))
    await stage.seen.until(lambda: stage.claimed(VICTIM), "its share of the partitions")
    async with stage.agents(8, tokens=100, turns=2) as work:
        fired = await stage.dies()
    assert not work.broken
    return Happened(fired)


@worker_row("kill a rollout worker before it reads its own Claim", failpoint="rollout.before_own_claim")
async def worker_dies_before_its_claim(stage: Stage) -> Happened:
    """It dies between its Claims; whoever follows claims again. Agents are at work meanwhile."""
    async with stage.agents(8) as work:
        await stage.under_way()
        await stage.arm(latest_pass=2)
        fired = await stage.dies()
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


@row("a rollout worker joins and leaves again and again")
async def workers_come_and_go(stage: Stage) -> Happened:
    """A third worker leaves as soon as it has partitions, cleanly and by SIGKILL in turns, and comes back, while agents work."""
    name = await stage.start_beside("rollout-0", "rollout-2", node="rollout-2")
    async with stage.agents(8, tokens=150, turns=4) as work:
        for number in range(LEAVES):
            await stage.seen.until(lambda: stage.held(name), "its share of the partitions")
            held = stage.held(name)
            if number % 2:
                stage.kill(name)
            else:
                stage.pipeline.crew.end([name])
            await stage.taken_over(name, held)
            await stage.pipeline.restart(name)
    assert not work.broken
    return Happened(f"{name} left {LEAVES} times and came back")
