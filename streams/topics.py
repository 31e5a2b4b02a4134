"""Creates the topics of the table (`schemas.topics`) and tells where a cluster differs from it."""

from __future__ import annotations

from schemas.errors import TopicMismatch
from schemas.topics import TOPICS, Policy, Topic
from streams.broker import Broker, TopicSpec

WEEK_MS = 7 * 24 * 3600 * 1000


def topic_config(policy: Policy, audit_retention_ms: int) -> dict[str, str]:
    """Kafka's own settings for a policy. LogAppendTime everywhere: old producer stamps would let retention delete fresh records."""
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(4 << 20)}
    if policy == "compact":
        return {**config, "cleanup.policy": "compact"}
    retention = {"keep": -1, "audit": audit_retention_ms, "delete": WEEK_MS}[policy]
    return {**config, "cleanup.policy": "delete", "retention.ms": str(retention)}


def topic_specs(namespace: str, session_partitions: int, audit_retention_ms: int = WEEK_MS) -> list[TopicSpec]:
    """The table as the topics to create."""
    return [
        TopicSpec(namespace + topic.name, topic.partition_count(session_partitions), topic_config(topic.policy, audit_retention_ms))
        for topic in TOPICS.values()
    ]


def differences(wanted: list[TopicSpec], found: dict[str, TopicSpec]) -> list[str]:
    """One line for each difference that would break a rule; settings that an operator may choose freely are not compared."""
    lines = []
    for spec in wanted:
        have = found.get(spec.name)
        if have is None:
            lines.append(f"{spec.name} is missing")
            continue
        if have.partitions != spec.partitions:
            lines.append(f"{spec.name} has {have.partitions} partitions, expected {spec.partitions}")
        lines += [
            f"{spec.name}: {key} is {have.config.get(key)}, expected {spec.config[key]}"
            for key in ("cleanup.policy", "message.timestamp.type")
            if have.config.get(key) != spec.config[key]
        ]
    return lines


async def ensure_topics(broker: Broker, namespace: str, session_partitions: int, audit_retention_ms: int = WEEK_MS) -> None:
    """Create what is missing, then check all.

    :raises TopicMismatch: a topic that exists is not as the table says.
    """
    wanted = topic_specs(namespace, session_partitions, audit_retention_ms)
    await broker.create_topics(wanted)
    await _check(broker, wanted)


async def check_topics(broker: Broker, namespace: str) -> int:
    """Check that the topics are as the table says; answers P, the number of partitions of `sessions`.

    :raises TopicMismatch: a topic is missing or differs.
    """
    partitions = await broker.partitions(namespace + "sessions")
    if not partitions:
        raise TopicMismatch(f"{namespace}sessions does not exist")
    await _check(broker, topic_specs(namespace, partitions))
    return partitions


async def _check(broker: Broker, wanted: list[TopicSpec]) -> None:
    lines = differences(wanted, await broker.describe_topics([spec.name for spec in wanted]))
    if lines:
        raise TopicMismatch("; ".join(lines))


def topic_named(name: str) -> Topic:
    """A row of the table.

    :raises TopicMismatch: there is none of that name.
    """
    try:
        return TOPICS[name]
    except KeyError:
        raise TopicMismatch(f"no topic {name!r}; there are {', '.join(TOPICS)}") from None
