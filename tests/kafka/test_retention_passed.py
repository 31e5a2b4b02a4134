"""Retention passes every Position of a real log while nobody reads: owner, assembler and gateway start again together and agree on where
things count anew, and the audit says what is gone instead of calling it wrong.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from infra.audit.findings import Expired
from infra.audit.log import KafkaLog
from infra.audit.verify import Audit
from schemas.identity import SessionId
from schemas.session import Claim
from schemas.topics import SESSIONS, TRAINING, TRAJECTORIES
from schemas.training import WeightVersion
from schemas.trajectory import Trajectory
from streams.cas import open_cas
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.service import Watch
from streams.topics import ensure_topics
from tests.unit.workers.gateway.scripted_owner import gateway
from workers.assembler.service import role as assembler
from workers.assembler.settings import AssemblerSettings
from workers.rollout.service import role as rollout
from workers.rollout.settings import RolloutSettings
from workers.scheduler.service import role as scheduler
from workers.scheduler.settings import SchedulerSettings

pytestmark = [pytest.mark.anyio, pytest.mark.kafka]

DEADLINE_S = 60.0


@asynccontextmanager
async def roles(log: Log, folder: Path, node: str) -> AsyncIterator[str]:
    """All that read `sessions`, and the scheduler, from their starts to their clean stops; yields the gateway's address."""
    worker = RolloutSettings(node=node, engine="paced", paced_tokens_per_s=500, report_s=0.1, commit_s=0.1, flush_s=0.02, snapshots="")
    async with anyio.create_task_group() as tasks, gateway(log, folder, snapshots="", answer_s=1.0) as base:
        await tasks.start(scheduler(SchedulerSettings(tick_s=0.2)), log, Watch())
        await tasks.start(rollout(worker), log, Watch())
        await tasks.start(assembler(AssemblerSettings(commit_s=0.1, snapshots="")), log, Watch())
        yield base
        tasks.cancel_scope.cancel()


async def ask(http: aiohttp.ClientSession, base: str, path: str, status: int, **body: Any) -> dict[str, Any]:
    """POST until the status comes: a session that was opened before a reset does not count, and is opened again."""
    with anyio.fail_after(DEADLINE_S):
        while True:
            async with http.post(f"{base}{path}", json=body) as response:
                said: dict[str, Any] = await response.json()
                if response.status == status:
                    return said
            await anyio.sleep(0.1)


async def open_and_call(http: aiohttp.ClientSession, base: str) -> SessionId:
    opened = await ask(http, base, "/v1/sessions", 201)
    said = await ask(http, base, f"/s/{opened['id']}/v1/chat/completions", 200, messages=[{"role": "user", "content": "x"}], max_tokens=2)
    assert said["usage"]["completion_tokens"] == 2
    return SessionId.parse(opened["id"])


async def trajectory_of(log: Log, session: SessionId) -> Trajectory:
    async with log.follow_all(TRAJECTORIES) as reader:
        with anyio.fail_after(DEADLINE_S):
            while True:
                for entry in await reader.read(timeout_s=0.5):
                    if isinstance(entry.record, Trajectory) and entry.record.session == session.offset:
                        return entry.record


async def kept_at(log: Log, offset: int) -> None:
    """Wait until owner and assembler keep this Position: from then on no commit is under way that a stop would cut."""
    place = log.place(SESSIONS, 0)
    with anyio.fail_after(DEADLINE_S):
        for group in ("rollout", "assembler"):
            while (await log.broker.committed(log.group(group), [place])).get(place, (0, ""))[0] != offset:
                await anyio.sleep(0.1)


async def publish(log: Log) -> None:
    version = WeightVersion(version=0, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="")
    async with open_cas(log, TRAINING) as training:
        await training.write([(0, version)])


def delete_below(bootstrap: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its answers come only while it lives
    answers = admin.delete_records([TopicPartition(topic, 0, offset)])
    assert [answer.result(DEADLINE_S).low_watermark for answer in answers.values()] == [offset]


async def resets(log: Log) -> list[Claim]:
    async with log.follow_all(SESSIONS) as reader:
        return [entry.record for entry in await reader.read_to_end([0]) if isinstance(entry.record, Claim) and entry.record.reset]


async def test_owner_assembler_and_gateway_start_again_where_retention_took_every_position(
    kafka_bootstrap: str, namespace: str, tmp_path: Path
) -> None:
    log = Log(KafkaBroker(kafka_bootstrap, client_id="retention", deadline_s=20.0), namespace, "test")
    await ensure_topics(log.broker, namespace, 1)
    await publish(log)
    place = log.place(SESSIONS, 0)
    async with roles(log, tmp_path, "a") as base, aiohttp.ClientSession() as http:
        ended, long = await open_and_call(http, base), await open_and_call(http, base)
        await ask(http, base, f"/v1/sessions/{ended}/close", 200)
        await trajectory_of(log, ended)
        await kept_at(log, long.offset)
    end = (await log.broker.ends([place]))[place]
    await anyio.to_thread.run_sync(delete_below, kafka_bootstrap, place.topic, end)
    async with roles(log, tmp_path, "b") as base, aiohttp.ClientSession() as http:
        fresh = await open_and_call(http, base)
        await ask(http, base, f"/s/{long}/v1/chat/completions", 410, messages=[{"role": "user", "content": "x"}])
        await ask(http, base, f"/v1/sessions/{fresh}/close", 200)
        written = await trajectory_of(log, fresh)
        await kept_at(log, (await log.broker.ends([place]))[place])
    assert [node.end for node in written.nodes] == ["length"]
    assert [claim.node for claim in await resets(log)] == ["b"]

    def audit() -> Any:
        with KafkaLog(kafka_bootstrap, namespace) as seen:
            return Audit(seen).run()

    verdict = await anyio.to_thread.run_sync(audit)
    assert [found for found in verdict.violations if found.rule != "R8"] == [], "version 0 has no files here"
    assert verdict.expired == [Expired("sessions", 0, end)]
    assert {each.rule for each, _ in verdict.unproven} == {"R1", "R2", "R3", "R5", "R6"}
