"""A trainer's turn: which Roles let it step, and what the scheduler may conclude from its status."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import anyio
import pytest

from schemas.grant import Role
from schemas.node import NodeStatus
from schemas.record import Record
from schemas.topics import GRANTS, TRAINING
from schemas.training import Step
from streams.codec import Entry
from streams.log import Log
from tests.unit.trainer.runs import (
    Disk,
    PaperTrainee,
    append,
    node_states,
    open_log,
    start_trainer,
    trainer_settings,
    training,
    write_groups,
)
from trainer.turn import Turn, may_step, open_turn

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
HOSTS = ["a", "b"]


def give(log: Log, node: str, role: Literal["rollout", "train"], *, asleep: bool = False) -> int:
    return append(log, GRANTS, 0, Role(node=node, role=role, asleep=asleep))


def table(*roles: Role) -> dict[bytes, Entry[Record]]:
    return {role.key(): Entry(0, offset, 0, role) for offset, role in enumerate(roles)}


def test_one_host_whose_last_role_is_train_is_enough() -> None:
    train, coming = Role(node="a", role="train"), Role(node="b", role="train", asleep=True)
    assert may_step(table(train), HOSTS)
    assert may_step(table(train, coming), HOSTS)
    assert not may_step(table(coming), HOSTS)
    assert not may_step(table(Role(node="a", role="rollout"), Role(node="b", role="rollout", asleep=True)), HOSTS)
    assert not may_step(table(train), ["z"])
    assert not may_step({}, HOSTS)


async def until_seen(turn: Turn, offset: int) -> None:
    assert turn.grants is not None
    with anyio.fail_after(DEADLINE_S):
        while turn.grants.position <= offset:
            await anyio.sleep(0.005)


async def test_what_is_read_in_a_step_counts_as_seen_after_it() -> None:
    log = await open_log()
    first = give(log, "a", "train")
    async with open_turn(log, HOSTS) as turn:
        assert turn.seen == first + 1
        async with turn.taken():
            back = give(log, "a", "rollout", asleep=True)
            await until_seen(turn, back)
            assert (turn.seen, turn.is_stepping) == (first + 1, True)
        assert (turn.seen, turn.is_stepping) == (back + 1, False)


async def test_without_hosts_it_is_always_its_turn() -> None:
    async with open_turn(await open_log(), []) as turn:
        with anyio.fail_after(DEADLINE_S):
            async with turn.taken():
                assert (turn.seen, turn.is_stepping, turn.cause) == (0, True, "")


@dataclass
class Stage:
    """A trainer that steps on HOSTS, and what stands in the log."""

    log: Log

    async def steps(self) -> int:
        return sum(isinstance(record, Step) for record in await training(self.log))

    async def status(self) -> NodeStatus | None:
        found = [record for record in await node_states(self.log) if isinstance(record, NodeStatus)]
        return found[-1] if found else None

    async def until_waiting(self, *, seen: int) -> NodeStatus:
        with anyio.fail_after(DEADLINE_S):
            while True:
                status = await self.status()
                if status is not None and status.grants_seen > seen and status.detail:
                    return status
                await anyio.sleep(0.01)

    async def until_steps(self, count: int) -> None:
        with anyio.fail_after(DEADLINE_S):
            while await self.steps() < count:
                await anyio.sleep(0.01)


@asynccontextmanager
async def stage(groups: int, steps: int) -> AsyncIterator[Stage]:
    log = await open_log()
    write_groups(log, groups)
    settings = trainer_settings(hosts=HOSTS, steps=steps, report_s=0.02)
    async with anyio.create_task_group() as tasks:
        await tasks.start(start_trainer, log, settings, PaperTrainee(Disk()))
        yield Stage(log)
        tasks.cancel_scope.cancel()


async def test_a_batch_waits_for_the_role_and_is_not_counted_as_begun() -> None:
    async with stage(groups=4, steps=2) as made:
        status = await made.until_waiting(seen=-1)
        assert (status.tags, status.hosts, status.state, status.detail) == (
            [], HOSTS, "serving", "a batch waits for a or b to be given the role train",
        )  # fmt: skip
        assert status.ready_groups >= 2
        place = made.log.place(TRAINING, 0)
        assert place not in await made.log.broker.committed(made.log.group("trainer"), [place])
        coming = give(made.log, "a", "train", asleep=True)
        await made.until_waiting(seen=coming)
        assert await made.steps() == 0
        give(made.log, "a", "train")
        await made.until_steps(2)


async def test_no_step_begins_after_the_role_was_taken_back() -> None:
    async with stage(groups=4, steps=2) as made:
        give(made.log, "b", "train")
        await made.until_steps(2)
    async with stage(groups=4, steps=2) as made:
        give(made.log, "b", "train")
        back = give(made.log, "b", "rollout", asleep=True)
        await made.until_waiting(seen=back)
        stood = await made.steps()
        again = give(made.log, "b", "rollout")
        await made.until_waiting(seen=again)
        assert await made.steps() == stood <= 1
