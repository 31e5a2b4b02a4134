"""Bytes that are no record, on every topic, while the roles work: dead letters, and everything goes on. Records of newer software: the
readers of `sessions` stop, the others bury them.

What is planted is written by a second client (confluent-kafka).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from confluent_kafka import Producer

from schemas.deadletter import DeadLetter
from schemas.errors import UnknownRecord
from schemas.topics import DEADLETTER, TOPICS, TRAINING
from schemas.training import Step
from tests.flow.harness import Pipeline, looping_pipeline, open_pipeline, publish
from tests.flow.seen import Seen, watching

pytestmark = [pytest.mark.anyio, pytest.mark.flow, pytest.mark.timeout(600)]

DEADLINE_S = 30.0
KEY = b"planted"
"""Compacted topics ask for one."""
READERS_OF_SESSIONS = ("gateway", "rollout-0", "assembler")
READERS = {
    "tasks": {"source", "agents", "trainer"},
    "sessions": {"gateway", "rollout", "assembler"},
    "trajectories": {"reward", "trainer"},
    "scores": {"source", "trainer"},
    "training": {"source", "rollout", "trainer"},
    "nodes": {"scheduler"},
    "grants": {"rollout"},
    "deadletter": {"test"},
}
"""By topic, the roles that read it all the time."""
Headers = dict[str, bytes]
Planted = tuple[str, bytes, Headers]
"""Topic, value, headers."""


def plant(pipeline: Pipeline, *messages: Planted) -> None:
    """Write these into partition 0 of their topics."""
    producer = Producer({"bootstrap.servers": pipeline.connection.address(), "enable.idempotence": True})
    for topic, value, headers in messages:
        producer.produce(pipeline.connection.namespace + topic, value, KEY, 0, headers=list(headers.items()))
    assert producer.flush(DEADLINE_S) == 0


def corrupt(topic: str) -> list[Planted]:
    """No headers; no msgpack; msgpack of a wrong shape."""
    kind = TOPICS[topic].records[0].type_name()
    headers = {"type": kind.encode(), "schema": b"1.0"}
    return [(topic, b"\xc1 garbage", {}), (topic, b"\xc1 garbage", headers), (topic, msgpack.packb({"type": kind, "no": "field"}), headers)]


def newer(topic: str) -> list[Planted]:
    """A type that nobody knows, and another major of one that everybody does."""
    kind = TOPICS[topic].records[0].type_name()
    return [
        (topic, msgpack.packb({"type": "Thought"}), {"type": b"Thought", "schema": b"1.0"}),
        (topic, msgpack.packb({"type": kind}), {"type": kind.encode(), "schema": b"2.0"}),
    ]


def buried(seen: Seen) -> set[tuple[str, str, bytes, bytes]]:
    """Who buried what: topic, role, value, the type that its headers name."""
    letters = [entry.record for entry in seen.all(DEADLETTER, DeadLetter) if entry.record.original_key == KEY]
    return {(each.topic, each.reader, each.original_value, each.original_headers.get("type", b"")) for each in letters}


@pytest.fixture
def loop(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Pipeline]:
    with looping_pipeline(kafka_bootstrap, tmp_path) as pipeline:
        yield pipeline


async def test_what_is_no_record_is_buried_by_every_reader_and_the_loop_goes_on(loop: Pipeline) -> None:
    planted = [message for topic in TOPICS for message in [*corrupt(topic), *(newer(topic) if topic != "sessions" else [])]]
    wanted = {(topic, role, value, headers.get("type", b"")) for topic, value, headers in planted for role in READERS[topic]}
    processes = {name: member.process for name, member in loop.crew.members.items()}
    async with watching(loop.log()) as seen:
        await seen.until(lambda: seen.all(TRAINING, Step), "a step")
        plant(loop, *planted)
        await seen.until(lambda: wanted <= buried(seen), "a dead letter of every reader for each planted record")
        before = len(seen.all(TRAINING, Step))
        await seen.until(lambda: len(seen.all(TRAINING, Step)) >= before + 2, "two more steps")
    assert {name: member.process for name, member in loop.crew.members.items() if member.is_alive} == processes
    verdict = await loop.audit(grace_ms=30_000)
    found = {(violation.rule, violation.topic) for violation in verdict.violations}
    assert found == {("R4", topic) for topic in TOPICS if topic not in ("nodes", "deadletter")}


@pytest.fixture
def bare(kafka_bootstrap: str, tmp_path: Path) -> Iterator[Pipeline]:
    with open_pipeline(kafka_bootstrap, tmp_path) as pipeline:
        yield pipeline


@pytest.mark.parametrize("planted", newer("sessions"), ids=["type", "major"])
async def test_newer_records_stop_every_reader_of_sessions(bare: Pipeline, planted: Planted) -> None:
    await publish(bare.log())
    await bare.start("scheduler", *READERS_OF_SESSIONS)
    plant(bare, planted)
    for name in READERS_OF_SESSIONS:
        assert await bare.exit_code(name) == UnknownRecord.exit_code
        last = bare.crew.members[name].last_words()
        assert "sessions holds" in last
        assert UnknownRecord.remedy in last
