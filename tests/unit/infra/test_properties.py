"""The text of server.properties against hand-written lines."""

from __future__ import annotations

from pathlib import Path

from infra.broker.properties import NodePorts, node_properties

SINGLE = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:19093
listeners=CLIENT://127.0.0.1:19092,CONTROLLER://127.0.0.1:19093
advertised.listeners=CLIENT://127.0.0.1:19092
listener.security.protocol.map=CLIENT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=CLIENT
controller.listener.names=CONTROLLER
log.dirs=/run/n1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
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

OF_THREE = [
    "node.id=2",
    "controller.quorum.voters=1@127.0.0.1:12,2@127.0.0.1:22,3@127.0.0.1:32",
    "listeners=CLIENT://127.0.0.1:21,INTERNAL://127.0.0.1:23,CONTROLLER://127.0.0.1:22",
    "advertised.listeners=CLIENT://127.0.0.1:21,INTERNAL://127.0.0.1:23",
    "listener.security.protocol.map=CLIENT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name=INTERNAL",
    "offsets.topic.replication.factor=3",
    "transaction.state.log.replication.factor=3",
    "transaction.state.log.min.isr=2",
    "share.coordinator.state.topic.replication.factor=3",
    "share.coordinator.state.topic.min.isr=2",
    "default.replication.factor=3",
    "min.insync.replicas=2",
    "unclean.leader.election.enable=false",
    "controller.quorum.fetch.timeout.ms=1000",
    "controller.quorum.election.timeout.ms=500",
]


def test_a_single_node_is_set_line_by_line() -> None:
    assert node_properties(1, [NodePorts(19092, 19093)], Path("/run/n1")) == SINGLE


def test_the_second_of_three_nodes_knows_its_quorum() -> None:
    ports = [NodePorts(11, 12, 13), NodePorts(21, 22, 23), NodePorts(31, 32, 33)]
    lines = node_properties(2, ports, Path("/run/n2")).splitlines()
    assert [line for line in OF_THREE if line not in lines] == []
    assert len({line.split("=")[0] for line in lines}) == len(lines), "a key stands twice"


def test_every_port_of_a_node_is_checked_before_it_starts() -> None:
    assert NodePorts(1, 2).all() == (1, 2)
    assert NodePorts(1, 2, 3).all() == (1, 2, 3)
    assert NodePorts(1, 2, 3, 4).all() == (1, 2, 3), "at the advertised port somebody listens already"


def test_a_proxied_node_sends_clients_elsewhere_and_other_nodes_to_itself() -> None:
    lines = node_properties(1, [NodePorts(11, 12, 13, 14)], Path("/run/n1")).splitlines()
    assert "listeners=CLIENT://127.0.0.1:11,INTERNAL://127.0.0.1:13,CONTROLLER://127.0.0.1:12" in lines
    assert "advertised.listeners=CLIENT://127.0.0.1:14,INTERNAL://127.0.0.1:13" in lines
    assert "inter.broker.listener.name=INTERNAL" in lines
