"""Fixtures for every tier: the event loop's name, a real broker, and a summary that names each tier that could not run."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import warnings
from collections import Counter
from collections.abc import Iterator

import pytest

from infra.broker.cluster import LocalKafka
from schemas.errors import SetupError

TIERS = ("kafka", "torch", "flow")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """The backend of all async tests."""
    return "asyncio"


@pytest.fixture(scope="session")
def kafka_bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker's address, one for the whole run: the given one, else one from jars, else a container, else the tests are skipped."""
    given = os.environ.get("SEAMLESSFLOW_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    kafka = LocalKafka(tmp_path_factory.mktemp("kafka-session"))
    try:
        kafka.start()
    except SetupError as missing:
        yield from _container_or_skip(missing)
        return
    try:
        yield kafka.bootstrap
    finally:
        kafka.stop()


@pytest.fixture
def namespace() -> str:
    """A namespace of topics, groups and transactional ids that no other test uses."""
    return f"test-{secrets.token_hex(4)}."


def _container_or_skip(missing: SetupError) -> Iterator[str]:
    if not _docker_answers():
        pytest.skip(f"no broker address, no local Kafka ({missing}), no Docker engine")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the container library's own, at import
        from testcontainers.kafka import KafkaContainer
    container = KafkaContainer().with_kraft().with_env("KAFKA_TRANSACTION_STATE_LOG_MIN_ISR", "1")
    with container.with_env("KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR", "1") as kafka:
        yield kafka.get_bootstrap_server()


def _docker_answers() -> bool:
    docker = shutil.which("docker")
    return docker is not None and subprocess.run([docker, "info"], capture_output=True, timeout=20, check=False).returncode == 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that asks for a broker, or lies in tests/kafka, belongs to the tier `kafka`; one in tests/flow to `flow`."""
    for item in items:
        folder = item.path.relative_to(item.config.rootpath).parts
        if "kafka_bootstrap" in getattr(item, "fixturenames", ()) or "kafka" in folder:
            item.add_marker("kafka")
        if "flow" in folder:
            item.add_marker("flow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name every tier of which tests were skipped, with how many and why: a tier never passes silently."""
    skipped: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        for tier in (name for name in TIERS if name in report.keywords):
            skipped[tier, reason.removeprefix("Skipped: ")] += 1
    if not skipped:
        return
    terminalreporter.section("skipped tiers")
    for (tier, reason), count in sorted(skipped.items()):
        terminalreporter.write_line(f"{tier}: {count} tests skipped: {reason}")
