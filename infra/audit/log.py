"""Where the audit's messages come from: a cluster, or a plain list of messages.

Invariants:
- a topic is read from its first record to its end as it stood when the log was opened; later records are never seen;
- the ends are taken in the order READ_ORDER, readers before what they refer to: so a log that is still being written never shows a record
  whose cause lies beyond the captured end (a Step before its Trajectory, a Trajectory before its Close, a Claim before its Grant);
- `tasks`, `training` and `grants` are read committed: records of open or aborted transactions do not exist.

Nothing is kept here but the messages of one fetch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from schemas.errors import BrokerError, BrokerUnavailable, RetentionPassed, TopicMismatch
from streams.broker import Message

COMMITTED = frozenset({"tasks", "training", "grants"})
"""Topics that are written in transactions."""

READ_ORDER = ("training", "scores", "trajectories", "sessions", "grants", "tasks", "deadletter")
"""The topics of an audit: each before those that it refers to."""

FETCH_LIMIT = 1000
"""Messages per call: one message at a time costs librdkafka ten times as much."""

FETCH_S = 0.05
"""`consume` waits this long for FETCH_LIMIT messages, however many have come: the end of every topic costs it once."""

END_WAIT_MS = 10
"""The broker holds a fetch this long where it has nothing to give. The end of a topic is such a place: at the client's own 500 ms each
topic would cost half a second, one that is read committed twice that."""

AGAIN_S = 0.2
"""Between two questions to a broker that said "later"."""


class Log(Protocol):
    """A finite log. Topic and group names are without the namespace; `end_ms` is when it ends, milliseconds since 1970."""

    @property
    def end_ms(self) -> int: ...  # noqa: D102

    def read(self, topic: str) -> Iterator[Message]:
        """All messages of a topic, in order within each partition.

        :raises BrokerUnavailable: nothing came for longer than the time-out.
        :raises RetentionPassed: the first records expired since the log was opened.
        """
        ...

    def starts(self, topic: str) -> Mapping[int, int]:
        """The first offset left in each partition of a topic."""
        ...

    def ends(self, topic: str) -> Mapping[int, int]:
        """The offset after the last in each partition of a topic."""
        ...

    def committed(self, group: str) -> Mapping[int, tuple[int, str]]:
        """By partition of `sessions`: the offset and the metadata that `group` committed."""
        ...


@dataclass(slots=True)
class ListLog:
    """A log given as messages, for tests: `commits` maps a group to partition → (offset, metadata).

    `firsts`: (topic, partition) → the first offset that retention left; what lies below is not read.
    """

    messages: list[Message]
    commits: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    firsts: dict[tuple[str, int], int] = field(default_factory=dict)
    namespace: str = "seamlessflow."

    @property
    def end_ms(self) -> int:
        """The last timestamp."""
        return max((message.timestamp_ms for message in self.messages), default=0)

    def read(self, topic: str) -> Iterator[Message]:
        """The messages of one topic by partition and offset."""
        left = [message for message in self._of(topic) if message.offset >= self.firsts.get((topic, message.partition), 0)]
        return iter(sorted(left, key=lambda message: (message.partition, message.offset)))

    def starts(self, topic: str) -> Mapping[int, int]:
        """The first offset left of each partition."""
        return {partition: self.firsts.get((topic, partition), 0) for partition in self.ends(topic)}

    def ends(self, topic: str) -> Mapping[int, int]:
        """One after the highest offset of each partition, whether it is left or not."""
        ends: dict[int, int] = {}
        for message in self._of(topic):
            ends[message.partition] = max(ends.get(message.partition, 0), message.offset + 1)
        return ends

    def _of(self, topic: str) -> list[Message]:
        return [message for message in self.messages if message.topic == self.namespace + topic]

    def committed(self, group: str) -> Mapping[int, tuple[int, str]]:
        """What the test said."""
        return self.commits.get(group, {})


class KafkaLog:
    """A cluster as a log; a context manager. Reads with `assign`, commits nothing, joins no group.

    :raises BrokerUnavailable: no broker answers within `timeout_s`.
    :raises TopicMismatch: a topic is missing.
    """

    def __init__(self, bootstrap: str, namespace: str = "seamlessflow.", *, timeout_s: float = 20.0) -> None:
        self._bootstrap = bootstrap
        self._namespace = namespace
        self._timeout_s = timeout_s
        self._bounds: dict[str, dict[int, tuple[int, int]]] = {}
        self._commits: dict[str, dict[int, tuple[int, str]]] = {}
        self.end_ms = 0

    def __enter__(self) -> Self:
        for group in ("rollout", "assembler"):  # before any end: a position committed later could lie beyond it
            self._commits[group] = self._committed(group)
        for topic in READ_ORDER:
            with self._consumer(topic in COMMITTED) as consumer:
                self._bounds[topic] = {
                    partition: self._watermarks(consumer, topic, partition) for partition in self._partitions(consumer, topic)
                }
        self.end_ms = time.time_ns() // 1_000_000
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bounds.clear()

    def starts(self, topic: str) -> Mapping[int, int]:
        """The first offset left in each partition when the log was opened."""
        return {partition: low for partition, (low, _) in self._bounds[topic].items()}

    def ends(self, topic: str) -> Mapping[int, int]:
        """The end of each partition when the log was opened."""
        return {partition: high for partition, (_, high) in self._bounds[topic].items()}

    def committed(self, group: str) -> Mapping[int, tuple[int, str]]:
        """What the group had committed when the log was opened."""
        return self._commits[group]

    def read(self, topic: str) -> Iterator[Message]:
        """Messages up to the captured ends; gaps at the end (transaction markers) are passed by the broker's end-of-partition events."""
        left = {partition: high for partition, (low, high) in self._bounds[topic].items() if high > low}
        with self._consumer(topic in COMMITTED) as consumer:
            # the first offset by its number: a new client that is asked for "the beginning" first waits half a second for the leader
            firsts = {partition: self._bounds[topic][partition][0] for partition in left}
            consumer.assign([TopicPartition(self._namespace + topic, partition, first) for partition, first in firsts.items()])
            while left:
                for fetched in self._fetch(consumer, topic):
                    yield from self._within(consumer, fetched, left)

    def _within(self, consumer: Consumer, fetched: Any, left: dict[int, int]) -> Iterator[Message]:
        partition, offset = fetched.partition(), fetched.offset()
        if partition not in left:
            return
        if fetched.error() is None and offset < left[partition]:
            yield _message(fetched)
        if offset + (fetched.error() is None) >= left[partition]:
            del left[partition]
            consumer.incremental_unassign([TopicPartition(fetched.topic(), partition)])

    def _fetch(self, consumer: Consumer, topic: str) -> list[Any]:
        deadline = time.monotonic() + self._timeout_s
        while not (fetched := consumer.consume(FETCH_LIMIT, FETCH_S)):
            if time.monotonic() > deadline:
                raise BrokerUnavailable(f"{topic}: no message from {self._bootstrap} for {self._timeout_s:g} s")
        for error in (each.error() for each in fetched):
            if error is not None and error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise RetentionPassed(f"{topic}: records expired while the log was read; read it again")
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise BrokerError(f"{topic}: {error.str()}")
        return fetched

    def _partitions(self, consumer: Consumer, topic: str) -> list[int]:
        found = _asked(consumer.list_topics, self._namespace + topic, timeout=self._timeout_s).topics[self._namespace + topic]
        if found.error is not None:
            raise TopicMismatch(f"topic {self._namespace}{topic} does not exist at {self._bootstrap}")
        return sorted(found.partitions)

    def _watermarks(self, consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._namespace + topic, partition)
        low, high = _asked(consumer.get_watermark_offsets, place, timeout=self._timeout_s)
        return low, high

    def _committed(self, group: str) -> dict[int, tuple[int, str]]:
        with self._consumer(True, group=self._namespace + group) as consumer:
            places = [TopicPartition(self._namespace + "sessions", each) for each in self._partitions(consumer, "sessions")]
            answered = _asked(consumer.committed, places, timeout=self._timeout_s)
        return {each.partition: (each.offset, _metadata(each)) for each in answered if each.offset >= 0}

    def _consumer(self, committed: bool, *, group: str = "audit") -> _Closing:
        return _Closing(
            Consumer(
                {
                    "bootstrap.servers": self._bootstrap,
                    "group.id": group,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "enable.partition.eof": True,
                    "fetch.wait.max.ms": END_WAIT_MS,
                    "isolation.level": "read_committed" if committed else "read_uncommitted",
                    "auto.offset.reset": "error",
                    "log_level": 2,  # what is wrong comes back as an error; the client's own lines would run through the progress display
                }
            )
        )


class _Closing:
    """A consumer that is closed at the end of a `with`."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def __enter__(self) -> Consumer:
        return self._consumer

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._consumer.close()


def _asked(question: Any, *subject: Any, timeout: float) -> Any:
    """Put a question to the broker, again while it says "later"; librdkafka's own exception becomes ours."""
    until = time.monotonic() + timeout
    while True:
        try:
            return question(*subject, timeout=timeout)
        except KafkaException as error:
            if not _may_be_asked_again(error.args[0]) or time.monotonic() > until:
                raise BrokerUnavailable(error.args[0].str()) from error
        time.sleep(AGAIN_S)


def _may_be_asked_again(error: KafkaError) -> bool:
    """A broker that has just come back does not know yet what it is to coordinate."""
    return error.retriable() or error.code() in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)


def _message(fetched: Any) -> Message:
    headers: Iterable[tuple[str, bytes]] = fetched.headers() or ()
    return Message(
        topic=fetched.topic(),
        partition=fetched.partition(),
        offset=fetched.offset(),
        timestamp_ms=fetched.timestamp()[1],
        key=fetched.key(),
        value=fetched.value(),
        headers=tuple(headers),
    )


def _metadata(place: TopicPartition) -> str:
    """The committed text up to its semicolon. The client hands it on without its length, so foreign bytes may follow."""
    try:
        said = place.metadata or ""
    except UnicodeDecodeError as error:
        said = error.object.decode("utf-8", errors="replace")
    text, end, _ = said.partition(";")
    return str(text + end)
