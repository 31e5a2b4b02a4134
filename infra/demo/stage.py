"""Before the curtain: an empty run folder, a Kafka, the topics, the initial model. Nothing of an earlier demo is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from infra.broker.cluster import LocalKafka
from infra.crew.roll import end_crew, require_vacant
from infra.demo.cast import Plan
from schemas.errors import SetupError
from schemas.settings import Connection
from streams.kafka import KafkaBroker
from streams.topics import ensure_topics, topic_specs

MODEL_S = 180.0
PARTITIONS = 16


def prepare(connection: Connection, plan: Plan) -> Connection:
    """Make everything ready for the crew; answers the connection with the broker's address.

    :raises SetupError: Kafka or the model could not be made, or another process runs a crew in the run folder.
    """
    require_vacant(connection.run_dir)
    end_crew(connection.run_dir)
    kafka = None if connection.bootstrap else LocalKafka(connection.run_dir)
    if kafka is not None:
        kafka.stop()
    _empty(plan.run_dir)
    with _model(plan):
        if kafka is not None:
            kafka.start()
            connection = connection.model_copy(update={"bootstrap": kafka.bootstrap})
        anyio.run(_topics, connection)
    return connection


@contextmanager
def _model(plan: Plan) -> Iterator[None]:
    """Make the initial model beside other work: a process of its own, so that this one never loads torch."""
    command = [sys.executable, "-m", "infra.demo.warm_up", str(plan.model_dir), str(plan.seed)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield
            said, _ = process.communicate(timeout=MODEL_S)
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise SetupError(f"the initial model could not be made: {said.strip().splitlines()[-1] if said.strip() else process.returncode}")


async def _topics(connection: Connection) -> None:
    """Fresh topics: of a given broker only this namespace is touched."""
    broker = KafkaBroker(connection.address(), client_id="demo")
    names = [spec.name for spec in topic_specs(connection.namespace, PARTITIONS)]
    if existing := await broker.describe_topics(names):
        await broker.delete_topics(list(existing))
    await ensure_topics(broker, connection.namespace, PARTITIONS)


def _empty(run_dir: Path) -> None:
    """Remove what an earlier demo left; refuse a folder that is not a run's."""
    if run_dir.exists() and any(run_dir.iterdir()) and not any((run_dir / mark).exists() for mark in ("kafka", "model", "logs")):
        raise SetupError(f"{run_dir} holds other things than a run: choose another --run-dir")
    shutil.rmtree(run_dir, ignore_errors=True)
    run_dir.mkdir(parents=True)
