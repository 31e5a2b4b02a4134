"""`down` and `fetch`: the end of what runs in a run folder, and what a local Kafka needs."""

from __future__ import annotations

import sys

from infra.cli.where import AS_SET, Where


def down(*, where: Where = AS_SET) -> None:
    """Stop what runs in the run folder: a pipeline, roles that were left behind, the local Kafka. Its data stays for the next `up`."""
    from infra.broker.cluster import LocalKafka
    from infra.crew.roll import end_crew

    run_dir = where.connection().run_dir
    kafka = LocalKafka(run_dir)
    if roles := end_crew(run_dir):
        print(f"ended {', '.join(roles)}")
    stopped = len(kafka.running())
    kafka.stop()
    print(f"stopped {stopped} nodes; their data stays in {run_dir / 'kafka'}" if stopped else f"no Kafka ran in {run_dir}")


def fetch() -> None:
    """Fetch what a local Kafka needs (jars, a class archive; Java if PATH has none) into the user's cache, and say where it is."""
    from infra.broker.cluster import install

    say_fetching()
    found = install()
    print(f"Java {found.java.major}: {found.java.path}\nKafka: {found.jars}")


def say_fetching() -> None:
    """Say it where the first use of Kafka takes a while."""
    from infra.broker.jars import are_cached

    if not are_cached():
        print("fetching Kafka's jars, once …", file=sys.stderr, flush=True)
