"""Trainers, sources and agents that die in mid-work while the loop is closed: no session is trained twice or forgotten."""

from __future__ import annotations

from functools import partial

from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage

trainer_row = partial(row, scene="loop", arms="trainer")


@trainer_row("kill the trainer after its commit", failpoint="trainer.after_commit")
@trainer_row("kill the trainer when the broker has committed", failpoint="cas.after_commit")
@trainer_row("kill the trainer during a commit", failpoint="cas.in_commit")
@trainer_row("kill the trainer after it sent, before the commit", failpoint="cas.after_send")
@trainer_row("kill the trainer after its transaction began", failpoint="cas.after_init")
@trainer_row("kill the trainer after the files of a version", failpoint="trainer.after_files")
@trainer_row("kill the trainer after an update", failpoint="trainer.after_update")
@trainer_row("kill the trainer after it fetched a batch", failpoint="trainer.after_fetch")
async def trainer_dies_at(stage: Stage) -> Happened:
    await stage.arm(latest_pass=2)
    fired = await stage.dies()
    await stage.pipeline.restart("trainer")
    await stage.seen.more_steps(2)
    return Happened(fired)


@row("kill the source after it committed tasks", scene="loop", failpoint="source.after_tasks", arms="source")
async def source_dies_at(stage: Stage) -> Happened:
    await stage.arm(latest_pass=2)
    fired = await stage.dies()
    await stage.pipeline.restart("source")
    await stage.seen.more_steps(2)
    return Happened(fired)


@row("kill the agents in mid-episode", scene="loop")
async def agents_die(stage: Stage) -> Happened:
    """What they ran is run again, in sessions of its own."""
    await stage.under_way()
    before = run_again(stage)
    stage.kill("agents")
    await stage.pipeline.restart("agents")
    await stage.seen.until(lambda: run_again(stage) > before, "a member to be run again")
    await stage.seen.more_steps(2)
    return Happened(f"agents died by SIGKILL; {run_again(stage) - before} members were run again")


def run_again(stage: Stage) -> int:
    """How many sessions are of a member that had one before."""
    opens = [(each.group, each.member) for each in stage.seen.opens() if each.purpose == "train"]
    return len(opens) - len(set(opens))
