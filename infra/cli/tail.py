"""`tail TOPIC`: look into a topic, past whatever is corrupt in it.

A second client (confluent-kafka) and plain msgpack, so that what it shows does not depend on the code that wrote it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message

POLL_S = 0.5
SHOWN = 8
"""How many values of an array the text form shows."""


def tail(
    topic: str,
    /,
    *,
    offset: Annotated[str, Parameter(name=["-o", "--offset"], allow_leading_hyphen=True)] = "-10",
    count: Annotated[int | None, Parameter(name=["-c", "--count"])] = None,
    partition: Annotated[int | None, Parameter(name=["-p", "--partition"])] = None,
    form: Annotated[Literal["json", "text"], Parameter(name=["-f", "--format"])] = "text",
    exit_at_end: Annotated[bool, Parameter(name=["-e", "--exit"], negative="")] = False,
    where: Where = AS_SET,
) -> None:
    """Print a topic's records as they come.

    Parameters
    ----------
    topic
        Its name in the topic table, such as sessions, or a full name.
    offset
        Where to start in each partition: beginning, end, an offset, or -N for the last N offsets.
    count
        Stop after this many records.
    partition
        Read this partition only.
    form
        text is one short line each, json one whole object each.
    exit_at_end
        Stop at the end of the log instead of waiting for more.
    """
    connection = where.connection()
    name = topic if topic.startswith(connection.namespace) else connection.namespace + topic
    write = as_json if form == "json" else as_text
    for shown, message in enumerate(_messages(connection.address(), name, partition, offset, exit_at_end), 1):
        sys.stdout.write(write(described(message)) + "\n")
        sys.stdout.flush()
        if shown == count:
            return


def starting_offset(text: str, low: int, high: int) -> int:
    """Where to start in a partition that holds offsets `low` up to, not including, `high`.

    :raises UsageError: `text` is none of beginning, end, N, -N.
    """
    from schemas.errors import UsageError

    if text in ("beginning", "end"):
        return low if text == "beginning" else high
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"-o {text}: expected beginning, end, an offset, or -N") from None
    return min(max(low, high + number if text.startswith("-") else number), high)


def described(message: Message) -> dict[str, Any]:
    """A message as plain data; a payload in the blob store is shown as if it stood in the log, under headers that say where it is."""
    from infra.cli.readable import printable, readable_payload

    headers: Any = message.headers() or []  # its stub says str
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp_ms": message.timestamp()[1],
        "key": printable(message.key()),
        "headers": {name: printable(value) for name, value in headers},
        "value": readable_payload(message.value(), headers),
    }


def as_json(record: dict[str, Any]) -> str:
    """One JSON object."""
    import json

    return json.dumps(record, ensure_ascii=False)


def as_text(record: dict[str, Any]) -> str:
    """One line: time, place, type, key, and the fields with arrays cut short."""
    at = datetime.fromtimestamp(record["timestamp_ms"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    value = dict(record["value"] or {})
    kind = "tombstone" if record["value"] is None else value.pop("type", None) or record["headers"].get("type", "?")
    fields = " ".join(f"{name}={_short(field)}" for name, field in value.items())
    return f"{at} {record['partition']}@{record['offset']} {kind} key={record['key']} {fields}"


def _short(field: Any) -> str:
    if isinstance(field, float):
        return f"{field:.4g}"
    if isinstance(field, list):
        shown = ", ".join(_short(value) for value in field[:SHOWN])
        return f"[{shown}, … {len(field)}]" if len(field) > SHOWN else f"[{shown}]"
    if isinstance(field, dict):
        return "{" + ", ".join(f"{name}: {_short(value)}" for name, value in field.items()) + "}"
    return str(field)


def _messages(bootstrap: str, topic: str, partition: int | None, offset: str, exit_at_end: bool) -> Iterator[Message]:
    from confluent_kafka import Consumer, TopicPartition

    from infra.broker.admin import SILENT, require_reachable

    require_reachable(bootstrap)
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": "seamlessflow.tail",  # librdkafka wants a name; nothing is committed under it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_uncommitted",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings, logger=SILENT)
    try:
        ends = _ends(consumer, bootstrap, topic, partition)
        places = [TopicPartition(topic, number, starting_offset(offset, low, high)) for number, (low, high) in ends.items()]
        consumer.assign(places)
        unfinished = {place.partition: ends[place.partition][1] for place in places if place.offset < ends[place.partition][1]}
        yield from _read(consumer, unfinished, exit_at_end)
    finally:
        consumer.close()


def _ends(consumer: Consumer, bootstrap: str, topic: str, partition: int | None) -> dict[int, tuple[int, int]]:
    """Partition → its first offset and the one after its last."""
    from confluent_kafka import KafkaException, TopicPartition

    from schemas.errors import BrokerUnavailable, TopicMismatch

    try:
        known = sorted(consumer.list_topics(topic, timeout=10.0).topics[topic].partitions)
        numbers = known if partition is None else [number for number in known if number == partition]
        if not numbers:
            raise TopicMismatch(f"{topic} has {len(known)} partitions" + (f", no {partition}" if known else ": it does not exist"))
        return {number: consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=10.0) for number in numbers}
    except KafkaException as failure:
        raise BrokerUnavailable(f"{bootstrap} does not answer: {failure.args[0].str()}") from failure


def _read(consumer: Consumer, unfinished: dict[int, int], exit_at_end: bool) -> Iterator[Message]:
    """`unfinished`: partition → its end at the start. A partition that is written without a pause never reports an end of its own."""
    from confluent_kafka import KafkaError

    from schemas.errors import BrokerError

    while unfinished or not exit_at_end:
        message = consumer.poll(POLL_S)
        if message is None:
            continue
        error = message.error()
        if error is None:
            yield message
            _finish(unfinished, message)
        elif error.code() == KafkaError._PARTITION_EOF:
            unfinished.pop(message.partition() or 0, None)
        elif error.fatal() or not error.retriable():
            raise BrokerError(f"reading stopped: {error.str()}")


def _finish(unfinished: dict[int, int], message: Message) -> None:
    partition, offset = message.partition(), message.offset()
    if partition is not None and offset is not None and offset + 1 >= unfinished.get(partition, offset + 2):
        del unfinished[partition]
