"""An archive of Kafka's loaded classes (class data sharing): with it a node starts in half the time.

Made once per Kafka version and Java build, by a node that starts and stops in a temporary folder. Invariant: whatever goes wrong here,
nodes start all the same, only slower.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from infra.broker.cache import cache_dir, filled
from infra.broker.jars import KAFKA_VERSION
from infra.broker.java import Java
from infra.broker.jvm import Installation
from infra.broker.node import format_nodes, launch, lay_out
from infra.broker.ports import answers, choose_ports
from infra.broker.process import end_all
from schemas.errors import SetupError

START_DEADLINE_S = 60.0
DUMP_DEADLINE_S = 60.0
"""The JVM writes the archive on its way out."""


def with_archive(java: Java, jars: Path) -> Installation:
    """How to run nodes: with the archive from the user's cache, which is made first where it is missing."""
    target = cache_dir() / "kafka" / f"{KAFKA_VERSION}-classes-{java.build}"
    try:
        archive = filled(target, lambda folder: _record(java, jars, folder)) / "kafka.jsa"
    except (SetupError, OSError):
        return Installation(java, jars)
    return Installation(java, jars, (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"))


def _record(java: Java, jars: Path, into: Path) -> None:
    archive = into / "kafka.jsa"
    recording = Installation(java, jars, (f"-XX:ArchiveClassesAtExit={archive}",))
    with tempfile.TemporaryDirectory() as scratch:
        _run_once(recording, Path(scratch))
    if not archive.exists():
        raise SetupError("the JVM wrote no class archive")


def _run_once(installation: Installation, folder: Path) -> None:
    ports = choose_ports(1)
    lay_out(folder, ports)
    format_nodes(installation, folder, [1], "seamlessflow-classes-x")
    process = launch(installation, folder, 1)
    try:
        until = time.monotonic() + START_DEADLINE_S
        while process.is_alive() and time.monotonic() < until and not answers(ports[0].client):
            time.sleep(0.1)
    finally:
        end_all([process], grace_s=DUMP_DEADLINE_S)
