"""The audit's own reader against a real broker: ends, transactions, committed positions, errors."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import msgpack
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra.audit.log import READ_ORDER, KafkaLog
from infra.audit.verify import Audit
from schemas.errors import BrokerUnavailable, RetentionPassed, TopicMismatch

DEADLINE_S = 30.0
NONCE = b"n" * 16


class Cluster:
    """Writes raw records and positions into the topics of one namespace."""

    def __init__(self, bootstrap: str, namespace: str) -> None:
        self.bootstrap = bootstrap
        self.namespace = namespace

    def create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        topics = [NewTopic(self.namespace + topic, 2, 1) for topic in READ_ORDER]
        for created in admin.create_topics(topics, operation_timeout=DEADLINE_S).values():
            created.result(DEADLINE_S)

    def produce(self, topic: str, *records: dict[str, Any], partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "enable.idempotence": True})
        self._queue(producer, topic, records, partition)
        assert producer.flush(DEADLINE_S) == 0

    def transact(self, topic: str, *records: dict[str, Any], commit: bool = True) -> None:
        producer = Producer({"bootstrap.servers": self.bootstrap, "transactional.id": self.namespace + "test"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        self._queue(producer, topic, records, 0)
        assert producer.flush(DEADLINE_S) == 0
        producer.commit_transaction(DEADLINE_S) if commit else producer.abort_transaction(DEADLINE_S)

    def commit_position(self, group: str, offset: int, metadata: str) -> None:
        place = TopicPartition(self.namespace + "sessions", 0, offset, metadata)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": self.namespace + group})
        consumer.commit(offsets=[place], asynchronous=False)
        consumer.close()

    def _queue(self, producer: Producer, topic: str, records: tuple[dict[str, Any], ...], partition: int) -> None:
        for record in records:
            headers = [("type", record["type"].encode()), ("schema", b"1.0"), ("nonce", NONCE)]
            producer.produce(self.namespace + topic, msgpack.packb(record), b"key", partition, headers=headers)


@pytest.fixture
def cluster(kafka_bootstrap: str, namespace: str) -> Iterator[Cluster]:
    made = Cluster(kafka_bootstrap, namespace)
    made.create_topics()
    yield made
    admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
    for deleted in admin.delete_topics([namespace + topic for topic in READ_ORDER]).values():
        deleted.result(DEADLINE_S)


def opened(nonce: int) -> dict[str, Any]:
    return {"type": "Open", "nonce": nonce.to_bytes(16, "big"), "check": "aaaaaa"}


def write_one_session(cluster: Cluster) -> None:
    """Grant 0, Claim, one session with one token, its Trajectory, and true Positions."""
    tokens, logprob = struct.pack("<i", 7), struct.pack("<f", -0.5)
    cluster.transact("grants", {"type": "Grant", "partition": 0, "node": "a", "incarnation": "x"})
    cluster.produce(
        "sessions",
        {"type": "Claim", "epoch": 0, "node": "a", "incarnation": "x"},
        opened(1),
        {"type": "Request", "session": 1, "nonce": b"r", "tokens": tokens, "sampling": {"max_tokens": 1}},
        {
            "type": "Span",
            "session": 1,
            "request": 2,
            "epoch": 0,
            "start": 0,
            "tokens": tokens,
            "logprobs": logprob,
            "version": 0,
            "kv_version": 0,
            "finish": "length",
        },
        {"type": "Close", "session": 1, "nonce": b"c"},
    )
    node = {
        "request": 2,
        "prompt": 1,
        "tokens": tokens * 2,
        "mask": b"\0\1",
        "logprobs": bytes(4) + logprob,
        "versions": struct.pack("<2i", -1, 0),
        "sampling": {"max_tokens": 1},
        "end": "length",
    }
    cluster.produce("trajectories", {"type": "Trajectory", "session": 1, "close": 4, "check": "aaaaaa", "nodes": [node]})
    cluster.commit_position("rollout", 5, "epoch=0;")
    cluster.commit_position("assembler", 1, "epoch=0;")


def test_a_correct_log_passes_and_a_planted_span_does_not(cluster: Cluster) -> None:
    write_one_session(cluster)
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        verdict = Audit(log).run()
    assert verdict.violations == []
    assert (verdict.checked["R5"], verdict.trajectories, verdict.figures.tokens) == (5, 1, 1)
    cluster.produce("sessions", {"type": "Claim", "epoch": 3, "node": "a", "incarnation": "x"})
    cluster.commit_position("rollout", 6, "epoch=0;")
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        places = [violation[:4] for violation in Audit(log).run().violations]
    assert places == [("R1", "sessions", 0, 5), ("R5", "sessions", 0, 6)]


def test_more_messages_than_one_fetch_from_two_partitions(cluster: Cluster) -> None:
    for partition in (0, 1):
        cluster.produce("sessions", *(opened(number) for number in range(1500)), partition=partition)
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        read = [(message.partition, message.offset) for message in log.read("sessions")]
    assert sorted(read) == [(partition, offset) for partition in (0, 1) for offset in range(1500)]


def test_what_was_written_after_opening_is_not_read(cluster: Cluster) -> None:
    cluster.produce("sessions", opened(0))
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        cluster.produce("sessions", opened(1))
        assert [message.offset for message in log.read("sessions")] == [0]
        assert log.ends("sessions") == {0: 1, 1: 0}


def test_what_expired_since_the_log_was_opened_is_said_to_be_gone(cluster: Cluster) -> None:
    cluster.produce("sessions", opened(0), opened(1))
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        admin, place = AdminClient({"bootstrap.servers": cluster.bootstrap}), TopicPartition(f"{cluster.namespace}sessions", 0, 1)
        admin.delete_records([place])[place].result(DEADLINE_S)
        with pytest.raises(RetentionPassed, match="read it again"):
            list(log.read("sessions"))


def test_only_committed_transactions_are_read(cluster: Cluster) -> None:
    grant = {"type": "Grant", "partition": 0, "node": "a", "incarnation": "x"}
    cluster.transact("grants", grant)
    cluster.transact("grants", grant, commit=False)
    cluster.transact("grants", grant)
    cluster.transact("grants", grant, commit=False)
    with KafkaLog(cluster.bootstrap, cluster.namespace) as log:
        assert [message.offset for message in log.read("grants")] == [0, 4]


def test_a_missing_topic_and_a_missing_broker_have_errors_of_their_own(kafka_bootstrap: str, namespace: str) -> None:
    with pytest.raises(TopicMismatch), KafkaLog(kafka_bootstrap, namespace):
        pass
    with pytest.raises(BrokerUnavailable), KafkaLog("127.0.0.1:1", namespace, timeout_s=1.0):
        pass
