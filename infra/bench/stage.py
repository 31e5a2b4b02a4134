"""Where benchmarks run: a Kafka of their own unless one is given, and a fresh namespace for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import uvloop

from infra.broker.cluster import LocalKafka
from schemas.errors import SeamlessFlowError
from schemas.settings import Connection
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.service import first_error
from streams.topics import ensure_topics

T = TypeVar("T")

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


def run(main: Callable[[], Awaitable[T]]) -> T:
    """Run a coroutine function to its end, on the loop that roles run on.

    :raises SeamlessFlowError: the first of those that it raised.
    """
    failures: list[SeamlessFlowError] = []
    try:
        return anyio.run(main, backend_options={"loop_factory": uvloop.new_event_loop})
    except* SeamlessFlowError as group:
        failures.append(first_error(group))
    raise failures[0]


async def fresh_log(connection: Connection, partitions: int) -> Log:
    """The log of a namespace whose topics are created now."""
    log = Log(KafkaBroker(connection.address(), client_id="bench"), connection.namespace, "bench")
    await ensure_topics(log.broker, connection.namespace, partitions)
    return log
