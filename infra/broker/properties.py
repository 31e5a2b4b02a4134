"""The text of a node's `server.properties`: pure, so that a test can compare it line by line.

Invariants: every listener is on loopback; a cluster of n nodes names n voters; with three nodes a write needs two of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HOST = "127.0.0.1"

SMALL = """\
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.num.partitions=1
transaction.state.log.num.partitions=1
num.network.threads=1
num.io.threads=2
log.cleaner.dedupe.buffer.size=2097152
log.segment.bytes=16777216
broker.session.timeout.ms=1500
broker.heartbeat.interval.ms=300
"""
"""The default dedupe buffer (128 MiB, allocated at start) does not fit a small heap. A node that was killed may come back only when its
old session is over: hence the short one, on a single node, too."""

QUORUM = """\
default.replication.factor=3
min.insync.replicas=2
unclean.leader.election.enable=false
controller.quorum.fetch.timeout.ms=1000
controller.quorum.election.timeout.ms=500
"""

LOG4J = """\
status=error
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%d{ISO8601} %p %c{1} %m%n
rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
logger.lifecycle.name=kafka.server.KafkaRaftServer
logger.lifecycle.level=info
logger.format.name=org.apache.kafka.metadata.storage
logger.format.level=info
"""
"""Warnings and the node's own life: what stands at the end of the log is then the cause of a failed start."""


@dataclass(frozen=True, slots=True)
class NodePorts:
    """The ports of one node; `internal` is None where nobody needs it: no second broker, and clients are told the truth.

    `advertised`: where clients are sent instead of `client`. Whoever asked for it listens there, and passes bytes on.
    """

    client: int
    controller: int
    internal: int | None = None
    advertised: int | None = None

    def all(self) -> tuple[int, ...]:
        """Every port that must be free for the node."""
        return tuple(port for port in (self.client, self.controller, self.internal) if port is not None)


def node_properties(node: int, ports: Sequence[NodePorts], data: Path) -> str:
    """`server.properties` of node `node` (counted from 1) in a cluster of `len(ports)` nodes, with its log in `data`."""
    own = ports[node - 1]
    voters = ",".join(f"{number}@{HOST}:{each.controller}" for number, each in enumerate(ports, 1))
    between = "CLIENT" if own.internal is None else "INTERNAL"
    open_to_clients = {"CLIENT": own.client} | ({} if own.internal is None else {"INTERNAL": own.internal})
    addresses = [f"{name}://{HOST}:{port}" for name, port in open_to_clients.items()]
    advertised = [f"CLIENT://{HOST}:{own.advertised or own.client}", *addresses[1:]]
    names = [*open_to_clients, "CONTROLLER"]
    lines = [
        "process.roles=broker,controller",
        f"node.id={node}",
        f"controller.quorum.voters={voters}",
        f"listeners={','.join([*addresses, f'CONTROLLER://{HOST}:{own.controller}'])}",
        f"advertised.listeners={','.join(advertised)}",
        f"listener.security.protocol.map={','.join(f'{name}:PLAINTEXT' for name in names)}",
        f"inter.broker.listener.name={between}",
        "controller.listener.names=CONTROLLER",
        f"log.dirs={data}",
        *_replication(len(ports)),
    ]
    return "\n".join(lines) + "\n" + SMALL + (QUORUM if len(ports) > 1 else "")


def _replication(nodes: int) -> list[str]:
    copies, in_sync = (3, 2) if nodes > 1 else (1, 1)
    return [
        f"offsets.topic.replication.factor={copies}",
        f"transaction.state.log.replication.factor={copies}",
        f"transaction.state.log.min.isr={in_sync}",
        f"share.coordinator.state.topic.replication.factor={copies}",
        f"share.coordinator.state.topic.min.isr={in_sync}",
    ]
