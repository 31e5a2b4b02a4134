"""Who does what in a cluster of three: leaders, coordinators, the controller, and which copies are in sync. Asked of the cluster itself.

What is asked here blocks: callers use a worker thread.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from infra.broker.admin import SILENT
from infra.broker.cluster import LocalKafka
from infra.broker.properties import HOST
from schemas.errors import NoProgress

TRANSACTIONS, GROUPS = "__transaction_state", "__consumer_offsets"
"""Each has one partition here: its leader is the coordinator of all transactions, or of all groups."""

DESCRIBE_QUORUM = 55
ANSWER_S = 5.0
POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Copies:
    """One partition: the node that leads it (-1: none does), and the nodes whose copies are in sync."""

    leader: int
    in_sync: frozenset[int]


class Brokers:
    """A local cluster, from outside."""

    def __init__(self, kafka: LocalKafka) -> None:
        self._kafka = kafka
        self._client = AdminClient({"bootstrap.servers": kafka.bootstrap, "socket.timeout.ms": 5000}, logger=SILENT)

    def copies(self, topic: str) -> dict[int, Copies]:
        """The partitions of a topic."""
        return self._copies(self._client.list_topics(topic, timeout=ANSWER_S).topics[topic])

    def led(self, topic: str, node: int) -> list[int]:
        """The partitions of a topic that a node leads."""
        return [partition for partition, copies in self.copies(topic).items() if copies.leader == node]

    def coordinator(self, topic: str) -> int:
        """The node that coordinates transactions or groups."""
        return self.copies(topic)[0].leader

    def controller(self) -> int:
        """The node that leads the quorum of controllers. Metadata does not tell: there, any broker is named."""
        return quorum_leader(self._kafka)

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, int]:
        """What of these partitions is visible: the offset after the last record that a reader gets. Their leaders must answer."""
        wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
        found = self._client.list_offsets(wanted, isolation_level=IsolationLevel.READ_UNCOMMITTED, request_timeout=ANSWER_S)
        return {place.partition: int(answer.result().offset) for place, answer in found.items()}

    def await_in_sync(self, nodes: int, deadline_s: float) -> None:
        """Wait until every partition has a leader, and so many copies in sync.

        :raises NoProgress: they have not within the deadline.
        """
        until = time.monotonic() + deadline_s
        while missing := self._out_of_sync(nodes):
            if time.monotonic() > until:
                raise NoProgress(f"after {deadline_s:.0f} s not in sync on {nodes} nodes: {', '.join(missing[:5])}")
            time.sleep(POLL_S)

    def _out_of_sync(self, nodes: int) -> list[str]:
        try:
            topics = self._client.list_topics(timeout=ANSWER_S).topics
        except KafkaException as failure:
            return [str(failure)]
        return [
            f"{name}/{partition}"
            for name, topic in topics.items()
            for partition, copies in self._copies(topic).items()
            if copies.leader < 0 or len(copies.in_sync) < nodes
        ]

    def _copies(self, topic: Any) -> dict[int, Copies]:
        return {number: Copies(found.leader, frozenset(found.isrs)) for number, found in topic.partitions.items()}


def quorum_leader(kafka: LocalKafka) -> int:
    """Ask the first node that answers; -1 where there is no leader."""
    state = kafka.state
    assert state is not None
    for number in kafka.running():
        try:
            return _ask(state.nodes[number - 1].ports.client)
        except OSError:
            continue
    return -1


def _ask(port: int) -> int:
    """One DescribeQuorum request (version 0) about `__cluster_metadata`, by hand: Python's clients do not have it."""
    topic = b"__cluster_metadata"
    header = struct.pack(">hhih", DESCRIBE_QUORUM, 0, 1, -1) + b"\0"
    body = b"\2" + bytes([len(topic) + 1]) + topic + b"\2" + struct.pack(">i", 0) + b"\0\0\0"
    with socket.create_connection((HOST, port), ANSWER_S) as connection:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        size = int.from_bytes(_receive(connection, 4), "big")
        answer = _receive(connection, size)
    # correlation 4, tags 1, error 2, topics 1, name 1 + its length, partitions 1, index 4, error 2, then the leader
    (leader,) = struct.unpack_from(">i", answer, 4 + 1 + 2 + 1 + 1 + len(topic) + 1 + 4 + 2)
    return int(leader)


def _receive(connection: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        chunk = connection.recv(count - len(received))
        if not chunk:
            raise ConnectionError("the node ended the connection")
        received += chunk
    return received
