"""A session of 200,000 tokens through the whole loop: gateway, worker with the paced engine, assembler, reward, trainer. All roles in
this process, on the broker in memory, with the blob store in a folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from models.chat import NumberChat
from schemas.topics import SESSIONS, TRAINING, TRAJECTORIES
from schemas.training import Step
from schemas.trajectory import Trajectory
from streams.blobs import Blobs, has_reference
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Role, Watch
from tests.flow.long_agent import converse
from tests.unit.trainer.runs import Disk, PaperTrainee
from tests.unit.workers.running import memory_log
from trainer.service import role as trainer
from trainer.settings import TrainerSettings
from workers.assembler.service import role as assembler
from workers.assembler.settings import AssemblerSettings
from workers.gateway.service import role as gateway
from workers.gateway.settings import GatewaySettings
from workers.reward.service import role as reward
from workers.reward.settings import RewardSettings
from workers.rollout.service import role as rollout
from workers.rollout.settings import RolloutSettings
from workers.scheduler.service import role as scheduler
from workers.scheduler.settings import SchedulerSettings

pytestmark = pytest.mark.anyio

DEADLINE_S = 90.0
CONTEXT = 220_000
FIRST, SECOND, ANSWER = 150_000, 50_000, 20
"""Tokens of two prompts, and of each answer."""
FEED = {"groups_per_step": 1, "rules": {"count": 1.0}}


def roles(folder: Path) -> dict[str, Role]:
    """Everything but source and agents."""
    model: dict[str, Any] = {"model_dir": folder}
    nothing: dict[str, Any] = {"snapshots": ""}
    paced: dict[str, Any] = {"engine": "paced", "paced_tokens_per_s": 1000, "flush_s": 0.05, "report_s": 0.2}
    trained = TrainerSettings.model_validate({"steps": 1, "recovery_s": 1e9, "feed": FEED})
    return {
        "scheduler": scheduler(SchedulerSettings(tick_s=0.2)),
        "rollout": rollout(RolloutSettings(**model, **nothing, **paced)),
        "assembler": assembler(AssemblerSettings(**nothing, commit_s=0.1)),
        "reward": reward(RewardSettings(**model, rule="tests.flow.plugins:CountRule")),
        "trainer": trainer(trained, lambda _: PaperTrainee(Disk())),
        "gateway": gateway(GatewaySettings(**model, **nothing, address_file=folder / "address", context_tokens=CONTEXT, drain_s=0)),
    }


@asynccontextmanager
async def standing(log: Log, folder: Path) -> AsyncIterator[str]:
    """The loop; yields the gateway's address. Each role has its own view of the store, as its own process has."""
    NumberChat().save(folder)
    async with anyio.create_task_group() as tasks:
        for name, role in roles(folder).items():
            await tasks.start(role, replace(log, role=name, blobs=Blobs(str(folder / "blobs"))), Watch())
        yield (folder / "address").read_text().strip()
        tasks.cancel_scope.cancel()


async def first_step(log: Log) -> Step:
    async with log.follow_all(TRAINING) as reader:
        while True:
            for entry in await reader.read(timeout_s=1.0):
                if isinstance(entry.record, Step):
                    return entry.record


async def test_a_session_of_200_000_tokens_is_answered_scored_and_trained(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    with anyio.fail_after(DEADLINE_S):
        async with standing(log, tmp_path) as url:
            _, answers = await converse(url, (FIRST, SECOND), ANSWER, DEADLINE_S)
            step = await first_step(log)
    assert answers == ["".join(f"{number} " for number in range(ANSWER))] * 2, "the paced engine counts, under version 0"
    async with log.follow_all(TRAJECTORIES) as reader:
        (entry,) = await reader.read_to_end([0])
    assert isinstance(entry.record, Trajectory)
    assert sum(len(node.mask) for node in entry.record.nodes) > FIRST + SECOND + 2 * ANSWER
    assert [sum(node.mask) for node in entry.record.nodes] == [ANSWER, ANSWER]
    assert [(place.partition, place.offset) for place in step.plan.places] == [(0, entry.offset)]
    assert step.trained_tokens == 2 * ANSWER
    assert isinstance(log.broker, MemoryBroker)
    carried = [message for topic in (SESSIONS, TRAJECTORIES) for message in log.broker.log(log.place(topic, 0)).read(0, 1000, False)[0]]
    assert [dict(message.headers)["type"] for message in carried if has_reference(message)] == [b"Request", b"Trajectory"]
    assert max(len(message.value or b"") for message in carried) < 512 << 10
