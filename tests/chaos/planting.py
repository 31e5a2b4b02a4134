"""Writes that no role of the system makes, by a second client (confluent-kafka): bytes as they are, any number of times, and deletions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from infra.audit.log import KafkaLog
from streams.broker import Message
from tests.flow.harness import Pipeline

DEADLINE_S = 30.0
LARGEST_BYTES = 4 << 20
"""The topics' own limit for a batch (`max.message.bytes`)."""


def plant(pipeline: Pipeline, messages: Iterable[Message]) -> int:
    """Write these, each into its topic (without the namespace) and partition, whatever offset it names; answers how many.

    :raises KafkaException: the broker refuses one.
    """
    settings = {"bootstrap.servers": pipeline.connection.address(), "message.max.bytes": 4 * LARGEST_BYTES}
    producer, failures = Producer(settings), []
    planted = list(messages)
    for message in planted:
        producer.produce(
            pipeline.connection.namespace + message.topic, message.value, message.key, message.partition,
            headers=list(message.headers), on_delivery=lambda failure, _: failures.append(failure) if failure else None,
        )  # fmt: skip
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0
    if failures:
        raise KafkaException(failures[0])
    return len(planted)


def copies(pipeline: Pipeline, topic: str, since: Mapping[int, int]) -> list[Message]:
    """The messages of a topic from these offsets on, to be planted once more."""
    with KafkaLog(pipeline.connection.address(), pipeline.connection.namespace) as log:
        return [
            Message(topic, message.partition, message.offset, 0, message.key, message.value, message.headers)
            for message in log.read(topic)
            if message.offset >= since.get(message.partition, 0)
        ]


def delete_all(pipeline: Pipeline, topic: str) -> dict[int, int]:
    """What retention does: delete every record up to the end; answers the end of each partition."""
    with KafkaLog(pipeline.connection.address(), pipeline.connection.namespace) as log:
        ends = dict(log.ends(topic))
    name = pipeline.connection.namespace + topic
    admin = AdminClient({"bootstrap.servers": pipeline.connection.address()})
    for answer in admin.delete_records([TopicPartition(name, partition, end) for partition, end in ends.items()]).values():
        answer.result(DEADLINE_S)
    return ends
