"""Where benchmarks run: a Kafka of their own unless one is given, and a fresh namespace for each."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import anyio
import uvloop

from infra.broker.cluster import LocalKafka
from schemas.errors import SeamlessFlowError
from schemas.settings import Connection
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.service import first_error
from streams.topics import ensure_topics, topic_specs

T = TypeVar("T")

Tell = Callable[[str], None]
"""Takes a line about how far a benchmark is."""


@contextmanager
def staged(connection: Connection) -> Iterator[Connection]:
    """The connection with an address: the given broker's, that of the Kafka which runs in the run folder, or of one as long as the context.

    :raises SetupError: Kafka could not be started.
    """
    connection.run_dir.mkdir(parents=True, exist_ok=True)
    if connection.bootstrap:
        yield connection
        return
    kafka = LocalKafka(connection.run_dir, lasting=True)
    is_found = bool(kafka.running())
    try:
        kafka.start()
        yield connection.model_copy(update={"bootstrap": kafka.bootstrap})
    finally:
        if not is_found:
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


@contextmanager
def fresh_namespace(connection: Connection, partitions: int) -> Iterator[Connection]:
    """The connection with a namespace of its own, whose topics exist as long as the context: `sessions` with so many partitions."""
    connection = connection.model_copy(update={"namespace": f"bench-{secrets.token_hex(4)}."})
    run(partial(ensure_topics, log_of(connection).broker, connection.namespace, partitions))
    try:
        yield connection
    finally:
        names = [spec.name for spec in topic_specs(connection.namespace, partitions)]
        run(partial(log_of(connection).broker.delete_topics, names))


def log_of(connection: Connection) -> Log:
    """The log of a connection's namespace, for this process."""
    return Log(KafkaBroker(connection.address(), client_id="bench"), connection.namespace, "bench")
