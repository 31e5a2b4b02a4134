"""Where benchmarks run: a Kafka of their own unless one is given, and a fresh namespace for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from infra.broker.cluster import LocalKafka
from schemas.settings import Connection
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics

Tell = Callable[[str], None]
"""Takes a line about how far a benchmark is."""


@contextmanager
def staged(connection: Connection) -> Iterator[Connection]:
    """The connection with an address: the given broker's, or that of a local Kafka which runs as long as the context.

    :raises SetupError: Kafka could not be started.
    """
    connection.run_dir.mkdir(parents=True, exist_ok=True)
    if connection.bootstrap:
        yield connection
        return
    kafka = LocalKafka(connection.run_dir)
    try:
        kafka.start()
        yield connection.model_copy(update={"bootstrap": kafka.bootstrap})
    finally:
        kafka.stop()


async def fresh_log(connection: Connection, partitions: int) -> Log:
    """The log of a namespace whose topics are created now."""
    log = Log(KafkaBroker(connection.address(), client_id="bench"), connection.namespace, "bench")
    await ensure_topics(log.broker, connection.namespace, partitions)
    return log
