"""Kafka's jars from Maven coordinates: by `mvn` where it is on PATH, else by the PyPI package jgo, a Maven resolver in Python.

Invariant: what is answered holds the broker and its client library in one version, KAFKA_VERSION.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.broker.cache import cache_dir, filled
from schemas.errors import SetupError

KAFKA_VERSION = "4.3.1"
LOG4J_VERSION = "2.25.1"

COORDINATES = (
    f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}",
    f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}",
    f"org.apache.logging.log4j:log4j-core:{LOG4J_VERSION}",
    f"org.apache.logging.log4j:log4j-slf4j-impl:{LOG4J_VERSION}",
)
"""kafka-clients stands here by name: left to the broker's own dependency, jgo's resolver takes an older one."""

REQUIRED = (f"kafka_2.13-{KAFKA_VERSION}.jar", f"kafka-clients-{KAFKA_VERSION}.jar", f"log4j-core-{LOG4J_VERSION}.jar")

MAVEN_DEADLINE_S = 600.0

Resolve = Callable[[Path], None]
"""Puts all jars into the folder given, or raises SetupError."""


def are_cached() -> bool:
    """True where `kafka_jars` needs no network."""
    return _home().is_dir()


def kafka_jars() -> Path:
    """The folder of the jars in the user's cache; resolved first where it is missing.

    :raises SetupError: neither Maven nor jgo could get them, or the cache cannot be written.
    """
    ways = [maven, jgo] if shutil.which("mvn") else [jgo]
    try:
        return filled(_home(), lambda folder: resolve(folder, ways))
    except OSError as failure:
        raise SetupError(f"the cache {cache_dir()} cannot be written: {failure}; free it or set XDG_CACHE_HOME") from failure


def resolve(folder: Path, ways: Sequence[Resolve]) -> None:
    """Fill `folder` by the first way that gets everything in REQUIRED.

    :raises SetupError: none did; says why for each.
    """
    reasons = []
    for way in ways:
        try:
            way(folder)
            _require_complete(folder)
        except SetupError as failure:
            reasons.append(str(failure))
            _empty(folder)
        else:
            return
    raise SetupError(f"Kafka {KAFKA_VERSION} is not to be had: {'; '.join(reasons)}. Check the network, or give SEAMLESSFLOW_BOOTSTRAP")


def maven(folder: Path) -> None:
    """Resolve by `mvn dependency:copy-dependencies`."""
    with tempfile.TemporaryDirectory() as scratch:
        pom = Path(scratch) / "pom.xml"
        pom.write_text(pom_text(), encoding="utf-8")
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAVEN_DEADLINE_S, check=False)
        except (OSError, subprocess.TimeoutExpired) as failure:
            raise SetupError(f"mvn: {failure}") from failure
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("[ERROR]")]
        raise SetupError(f"mvn: {said[0].removeprefix('[ERROR] ') if said else f'exit code {done.returncode}'}")


def jgo(folder: Path) -> None:
    """Resolve by jgo. Its own Maven repository is kept in the cache, so that an interrupted run goes on where it was.

    Only its resolver is used: its environments would look for a JDK of their own on the network.
    """
    from jgo.maven import MavenContext, PythonResolver

    context = MavenContext(resolver=PythonResolver(), repo_cache=cache_dir() / "maven")
    try:
        wanted = [context.create_dependency(each) for each in COORDINATES]
        given, transitive = context.resolver.resolve(wanted)
        for dependency in [*given, *(each for each in transitive if each.scope in ("compile", "runtime"))]:
            jar = dependency.artifact.resolve()
            shutil.copyfile(jar, folder / jar.name)
    # jgo names no errors of its own: what it raises comes from its HTTP library, its XML reader or plain RuntimeErrors.
    except Exception as failure:
        raise SetupError(f"jgo: {type(failure).__name__}: {failure}") from failure


def pom_text() -> str:
    """A pom that depends on COORDINATES and nothing else."""
    fields = [dict(zip(("groupId", "artifactId", "version"), each.split(":"), strict=True)) for each in COORDINATES]
    rows = ["".join(f"<{name}>{value}</{name}>" for name, value in each.items()) for each in fields]
    dependencies = "\n".join(f"    <dependency>{row}</dependency>" for row in rows)
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0">\n  <modelVersion>4.0.0</modelVersion>\n'
        "  <groupId>seamlessflow</groupId><artifactId>local-kafka</artifactId><version>1</version><packaging>pom</packaging>\n"
        f"  <dependencies>\n{dependencies}\n  </dependencies>\n</project>\n"
    )


def _home() -> Path:
    return cache_dir() / "kafka" / KAFKA_VERSION


def _require_complete(folder: Path) -> None:
    missing = [name for name in REQUIRED if not (folder / name).is_file()]
    if missing:
        raise SetupError(f"{', '.join(missing)} did not arrive")


def _empty(folder: Path) -> None:
    for entry in folder.iterdir():
        entry.unlink()
