"""What is written down about a local cluster, so that another process can find it, stop it, or bring it back.

Invariant: the file is replaced as a whole (written aside, then renamed), and its ports never change while the data folder lives.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from infra.broker.process import Process
from infra.broker.properties import HOST, NodePorts
from schemas.errors import UsageError


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """One node: its ports, and the process that last ran it (None: not started, or stopped on purpose)."""

    ports: NodePorts
    process: Process | None = None

    @property
    def is_running(self) -> bool:
        """True while the recorded process, and no other with its pid, runs."""
        return self.process is not None and self.process.is_alive()


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster; node n is `nodes[n - 1]`. `bootstrap` repeats the client ports for readers that want the address alone."""

    bootstrap: str
    cluster_id: str
    kafka_version: str
    nodes: tuple[NodeState, ...]

    @property
    def direct(self) -> str:
        """The address list for clients that pass by what listens at advertised ports."""
        return ",".join(f"{HOST}:{each.internal if each.advertised else each.client}" for each in (node.ports for node in self.nodes))

    def with_process(self, node: int, process: Process | None) -> ClusterState:
        """The same cluster with another process for one node."""
        changed = msgspec.structs.replace(self.nodes[node - 1], process=process)
        return msgspec.structs.replace(self, nodes=(*self.nodes[: node - 1], changed, *self.nodes[node:]))

    def running(self) -> list[Process]:
        """The processes that live now."""
        return [node.process for node in self.nodes if node.process is not None and node.process.is_alive()]


def bootstrap_of(ports: list[NodePorts]) -> str:
    """The address list for clients."""
    return ",".join(f"{HOST}:{each.advertised or each.client}" for each in ports)


def read_state(path: Path) -> ClusterState | None:
    """The recorded cluster; None where there is none.

    :raises UsageError: the file is not one that `write_state` wrote.
    """
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=ClusterState)
    except msgspec.DecodeError as failure:
        raise UsageError(f"{path} is not the state of a local Kafka ({failure}): remove it, or name another run folder") from failure


def write_state(path: Path, state: ClusterState) -> None:
    """Replace the file."""
    aside = path.with_suffix(f".{os.getpid()}")
    aside.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    aside.replace(path)
