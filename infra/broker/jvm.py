"""How a JVM is called to run Kafka."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.broker.java import Java

SMALL_JVM = (
    "-Xms128m",
    "-Xmx512m",
    "-XX:MaxDirectMemorySize=128m",
    "-XX:+UseSerialGC",
    "-Djava.awt.headless=true",
)
"""One node lives in 165 to 260 MB."""

QUICK_START = "-XX:TieredStopAtLevel=1"
"""One compiler tier: a node starts with 3.4 s of CPU instead of 5.6, and then spends half as much again on each message."""


@dataclass(frozen=True, slots=True)
class Installation:
    """What runs a node: a Java, the folder of Kafka's jars, and perhaps options (a class archive) that make it start faster."""

    java: Java
    jars: Path
    options: tuple[str, ...] = ()

    def format_command(self, properties: Path, log4j: Path, cluster_id: str) -> list[str]:
        """Format the data folder that `properties` names; one that is formatted is left alone."""
        return self._call(log4j, "kafka.tools.StorageTool", "format", "-g", "-t", cluster_id, "-c", str(properties))

    def run_command(self, properties: Path, log4j: Path) -> list[str]:
        """Run a node in the foreground."""
        return self._call(log4j, "kafka.Kafka", str(properties), options=self.options)

    def _call(self, log4j: Path, *arguments: str, options: Sequence[str] = ()) -> list[str]:
        # Sorted: an archive of classes fits one order of the class path only.
        class_path = ":".join(str(jar) for jar in sorted(self.jars.glob("*.jar")))
        return [self.java.path, *SMALL_JVM, *options, f"-Dlog4j2.configurationFile={log4j}", "-cp", class_path, *arguments]
