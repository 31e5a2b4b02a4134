"""`blobs list` and `blobs collect` on Kafka: a record that was deleted lets its blob go; `tail` and the audit read the other one."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from infra.audit.entry import read_entry
from infra.audit.log import KafkaLog
from infra.cli.main import execute
from schemas.settings import Connection
from schemas.topics import TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.blobs import INLINE_BYTES, Blobs
from streams.blobstore import BlobStore
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics

DAYS_AGO_S = 3 * 24 * 3600.0
TIMEOUT_S = 30.0


async def write(connection: Connection) -> None:
    """Two large Trajectories at offsets 0 and 1 of partition 1, as a process did three days ago."""
    broker = KafkaBroker(connection.address(), client_id="test")
    await ensure_topics(broker, connection.namespace, 2)
    blobs = Blobs(connection.blob_root(), clock=lambda: time.time() - DAYS_AGO_S)
    async with Log(broker, connection.namespace, "test", blobs).writer() as writer:
        for close in (7, 8):
            await (await writer.send(TRAJECTORIES, 1, Trajectory(session=close, close=close, payload={"text": "x" * INLINE_BYTES})))


def delete_records(connection: Connection, before: int) -> None:
    """Delete what stands before an offset of that partition, as retention does."""
    place = TopicPartition(connection.namespace + TRAJECTORIES.name, 1, before)
    admin = AdminClient({"bootstrap.servers": connection.address()})  # held: without it the answers never come
    for answer in admin.delete_records([place]).values():
        answer.result(TIMEOUT_S)


def test_a_blob_goes_when_its_record_was_deleted(
    kafka_bootstrap: str, namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = Connection(bootstrap=kafka_bootstrap, namespace=namespace, run_dir=tmp_path)
    flags = ["--bootstrap", kafka_bootstrap, "--namespace", namespace, "--run-dir", str(tmp_path)]
    anyio.run(write, connection)
    first, second = sorted(BlobStore(connection.blob_root()).find(), key=lambda blob: blob.name)

    def said(*command: str) -> str:
        assert execute([*command, *flags]) == 0
        return capsys.readouterr().out

    listed = said("blobs", "list")
    assert all(f"{blob.name}  {blob.bytes:>12,} bytes  held by trajectories[1]" in listed for blob in (first, second))
    assert said("blobs", "collect") == "0 blobs, 0.0 MB, removed\n"
    delete_records(connection, 1)
    assert "1 blobs, 0.5 MB, would be removed" in said("blobs", "collect", "--dry-run")
    assert "1 blobs, 0.5 MB, removed" in said("blobs", "collect")
    (left,) = BlobStore(connection.blob_root()).find()
    assert left in (first, second)
    assert '"close": 8' in said("tail", "trajectories", "-o", "beginning", "-f", "json", "-e")
    with KafkaLog(kafka_bootstrap, namespace) as log:
        (entry,) = (read_entry(message, "trajectories") for message in log.read("trajectories"))
    assert entry["close"] == 8
    assert said("blobs", "collect") == "0 blobs, 0.0 MB, removed\n"
