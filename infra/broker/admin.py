"""What an operator asks a cluster, by confluent-kafka: which brokers and topics there are, and the creation of missing ones."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic  # type: ignore[attr-defined]  # it does export it

from schemas.errors import BrokerError, BrokerUnavailable
from streams.broker import TopicSpec

DEADLINE_S = 10.0

SILENT = logging.getLogger("seamlessflow.librdkafka")
"""librdkafka prints every refused connection; ours is said once, as an error."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


class Admin:
    """A cluster by its address. Methods block, for DEADLINE_S seconds at most, and raise BrokerUnavailable after that."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._client = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000}, logger=SILENT)

    def broker_count(self) -> int:
        """How many brokers the cluster lists."""
        return len(self._metadata().brokers)

    def topic_names(self, prefix: str) -> list[str]:
        """The names of the topics that begin with `prefix`, sorted."""
        return sorted(name for name in self._metadata().topics if name.startswith(prefix))

    def create(self, specs: Sequence[TopicSpec]) -> list[str]:
        """Create those that do not exist; answers their names.

        :raises BrokerError: the cluster refuses one.
        """
        missing = [spec for spec in specs if spec.name not in self._metadata().topics]
        if not missing:
            return []
        wanted = [NewTopic(spec.name, num_partitions=spec.partitions, config=dict(spec.config)) for spec in missing]
        for name, future in self._client.create_topics(wanted, operation_timeout=DEADLINE_S).items():
            try:
                future.result(DEADLINE_S)
            except KafkaException as failure:
                if failure.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise BrokerError(f"{name} cannot be created: {failure.args[0].str()}") from failure
        created = [spec.name for spec in missing]
        self._await_visible(created)
        return created

    def describe(self, names: Sequence[str]) -> dict[str, TopicSpec]:
        """Partitions and configuration of those that exist."""
        topics = self._metadata().topics
        found = [name for name in names if name in topics]
        if not found:
            return {}
        resources = {ConfigResource(ConfigResource.Type.TOPIC, name): name for name in found}
        answers = {resources[each]: future for each, future in self._client.describe_configs(list(resources)).items()}
        configs = {name: {key: entry.value for key, entry in future.result(DEADLINE_S).items()} for name, future in answers.items()}
        return {name: TopicSpec(name, len(topics[name].partitions), configs[name]) for name in found}

    def _await_visible(self, names: Sequence[str]) -> None:
        """A broker answers Metadata from its own copy, which may be a moment behind the controller that created the topics."""
        until = time.monotonic() + DEADLINE_S
        while not set(names) <= set(self._metadata().topics):
            if time.monotonic() > until:
                raise BrokerError(f"{', '.join(names)} were created but did not appear within {DEADLINE_S:.0f} s")
            time.sleep(0.05)

    def _metadata(self) -> Any:
        try:
            return self._client.list_topics(timeout=DEADLINE_S)
        except KafkaException as failure:
            raise BrokerUnavailable(f"{self._bootstrap} does not answer: {failure.args[0].str()}") from failure
