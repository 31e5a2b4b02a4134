"""`up`, `down`, `status`, `fetch`: the local Kafka of a run folder."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where


def up(
    *,
    only: Literal["kafka"] = "kafka",
    nodes: Literal[1, 3] = 1,
    port: Annotated[int | None, Parameter(help="Client port of the first node; default: a free one.")] = None,
    where: Where = AS_SET,
) -> None:
    """Start a local Kafka in the run folder, or what is missing of it, and print its address.

    Parameters
    ----------
    only
        What to start.
    nodes
        Brokers of the cluster: 1, or 3 to lose one without a stop.
    """
    from infra.broker.cluster import LocalKafka

    kafka = LocalKafka(where.connection().run_dir)
    _say_fetching()
    kafka.start(nodes, port)
    print(kafka.bootstrap)


def down(*, where: Where = AS_SET) -> None:
    """Stop the local Kafka of the run folder. Its data stays for the next `up`."""
    from infra.broker.cluster import LocalKafka

    run_dir = where.connection().run_dir
    kafka = LocalKafka(run_dir)
    stopped = len(kafka.running())
    kafka.stop()
    print(f"stopped {stopped} nodes; their data stays in {run_dir / 'kafka'}" if stopped else f"no Kafka ran in {run_dir}")


def status(*, where: Where = AS_SET) -> None:
    """Show the cluster: address, brokers, and the topics of the namespace. Exit code 10 where it does not answer."""
    from infra.broker.admin import Admin
    from infra.broker.cluster import LocalKafka

    connection = where.connection()
    local = LocalKafka(connection.run_dir).state
    if local is not None and not connection.bootstrap:
        for number, node in enumerate(local.nodes, 1):
            word = f"pid {node.process.pid}" if node.process and node.is_running else "not running"
            print(f"node {number}: port {node.ports.client}, {word}")
    admin = Admin(connection.address())
    print(f"address {connection.address()}: {admin.broker_count()} brokers answer")
    print(f"topics in {connection.namespace}: {', '.join(admin.topic_names(connection.namespace)) or 'none'}")


def fetch() -> None:
    """Fetch what a local Kafka needs (jars, a class archive; Java if PATH has none) into the user's cache, and say where it is."""
    from infra.broker.cluster import install

    _say_fetching()
    found = install()
    print(f"Java {found.java.major}: {found.java.path}\nKafka: {found.jars}")


def _say_fetching() -> None:
    from infra.broker.jars import are_cached

    if not are_cached():
        print("fetching Kafka's jars, once …", file=sys.stderr, flush=True)
