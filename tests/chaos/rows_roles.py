"""Nodes that generate and train by turns; who takes part in a switch is killed in each phase of it. Nothing is lost or trained twice."""

from __future__ import annotations

from functools import partial

from schemas.grant import Role
from schemas.topics import GRANTS
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage

roles_row = partial(row, scene="roles")


@roles_row("taking turns: kill a worker told to sleep, before it lets go", failpoint="rollout.before_release", arms="rollout-1")
@roles_row("taking turns: kill a worker that fell asleep, before it says so", failpoint="rollout.asleep", arms="rollout-1")
@roles_row("taking turns: kill a worker that woke, before it says so", failpoint="rollout.awake", arms="rollout-1")
@roles_row("taking turns: kill the trainer when it is its turn, before the step", failpoint="trainer.granted", arms="trainer")
@roles_row("taking turns: kill the scheduler before it writes a role", failpoint="scheduler.before_grant", arms="scheduler")
@roles_row("taking turns: kill the scheduler between two roles of a switch", failpoint="scheduler.after_grant", arms="scheduler")
async def dies_in_a_switch(stage: Stage) -> Happened:
    """The others go on, or wait for it; started again, it does what its last Role says, and training goes on."""
    await stage.arm(latest_pass=2)
    fired = await stage.dies()
    await stage.pipeline.restart(stage.row.arms)
    before = last_role(stage)
    await stage.seen.more_steps(2)
    await stage.seen.until(lambda: turns(stage, before) >= 2, "the nodes to train and to return")
    return Happened(fired)


def last_role(stage: Stage) -> int:
    """The offset of the newest Role."""
    return max((entry.offset for entry in stage.seen.all(GRANTS, Role)), default=-1)


def turns(stage: Stage, above: int) -> int:
    """How many different plain Roles were written behind an offset."""
    return len({entry.record.role for entry in stage.seen.all(GRANTS, Role) if entry.offset > above and not entry.record.asleep})
