"""One node's files and processes below a cluster's folder: laid out, formatted, launched, and asked why it will not start."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from infra.broker.jvm import Installation
from infra.broker.process import Process, spawn
from infra.broker.properties import LOG4J, NodePorts, node_properties
from schemas.errors import SetupError

FORMAT_DEADLINE_S = 60.0

CAUSES = {
    "No space left on device": "the disk is full: free some, or name another run folder",
    "java.lang.InternalError: a fault occurred": "the disk is full or broken under a mapped file: free some, or name another run folder",
    "Address already in use": "a port is taken: run `seamlessflow down`, or end the process that listens there",
    "Failed to acquire lock on file .lock": "another broker uses this data folder: end it, or name another run folder",
    "Could not reserve enough space": "there is too little memory for a node (640 MiB)",
}
"""What a node's log says, and what that means for the operator."""


def properties_file(folder: Path, node: int) -> Path:
    """Where a node's settings stand."""
    return folder / f"n{node}.properties"


def log_file(folder: Path, node: int) -> Path:
    """Where a node's warnings and output go."""
    return folder / f"n{node}.log"


def data_folder(folder: Path, node: int) -> Path:
    """Where a node keeps its partitions."""
    return folder / f"n{node}"


def lay_out(folder: Path, ports: Sequence[NodePorts]) -> None:
    """Write the settings of every node; the same ports give the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    _log4j(folder).write_text(LOG4J, encoding="utf-8")
    for node in range(1, len(ports) + 1):
        text = node_properties(node, ports, data_folder(folder, node))
        properties_file(folder, node).write_text(text, encoding="utf-8")


def format_nodes(installation: Installation, folder: Path, nodes: Sequence[int], cluster_id: str) -> None:
    """Format the data folders that are not, all at once: a JVM takes a second. Kafka writes `meta.properties` last, so it marks the end.

    :raises SetupError: one failed; shows why.
    """
    fresh = [node for node in nodes if not (data_folder(folder, node) / "meta.properties").exists()]
    commands = {node: installation.format_command(properties_file(folder, node), _log4j(folder), cluster_id) for node in fresh}
    formatting = {node: _start(command, log_file(folder, node)) for node, command in commands.items()}
    try:
        for node, process in formatting.items():
            if process.wait(FORMAT_DEADLINE_S):
                raise SetupError(f"node {node} cannot be formatted: {diagnose(log_file(folder, node))}")
    except subprocess.TimeoutExpired as late:
        raise SetupError(f"formatting {folder} took more than {FORMAT_DEADLINE_S:.0f} s: is the machine overloaded?") from late
    finally:
        for process in formatting.values():
            process.kill()
            process.wait()


def launch(installation: Installation, folder: Path, node: int) -> Process:
    """Start a formatted node in the background."""
    return spawn(installation.run_command(properties_file(folder, node), _log4j(folder)), log_file(folder, node))


def diagnose(log: Path, lines: int = 4) -> str:
    """One line for the end of a node's log: a known cause with its remedy, else the last lines themselves."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    tail = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("\tat ")][-200:]  # no stack frames
    for sign, meaning in CAUSES.items():
        if any(sign in line for line in tail):
            return f"{meaning}; see {log}"
    return f"{log} ends with: {' | '.join(tail[-lines:]) or '(nothing)'}"


def _start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as out:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


def _log4j(folder: Path) -> Path:
    return folder / "log4j2.properties"
