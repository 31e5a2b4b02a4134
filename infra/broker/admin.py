"""What an operator asks a cluster that may not answer: which brokers and topics there are. Blocks, with one short deadline."""

from __future__ import annotations

import logging
import socket
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from schemas.errors import BrokerUnavailable, UsageError

DEADLINE_S = 10.0
CONNECT_S = 3.0

SILENT = logging.getLogger("seamlessflow.librdkafka")
"""librdkafka prints every refused connection; ours is said once, as an error."""
SILENT.addHandler(logging.NullHandler())
SILENT.propagate = False


def require_reachable(bootstrap: str) -> None:
    """Check that somebody listens at one of the addresses: librdkafka takes its whole deadline to say that nobody does.

    :raises BrokerUnavailable: nobody does.
    :raises UsageError: an address is not host:port.
    """
    refusals = [refusal for address in bootstrap.split(",") if (refusal := _refusal(address.strip()))]
    if len(refusals) == len(bootstrap.split(",")):
        raise BrokerUnavailable(f"{bootstrap} does not answer: {refusals[0]}")


def _refusal(address: str) -> str | None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise UsageError(f"{address!r} is not an address: expected host:port[,host:port]")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except OSError as failure:
        return failure.strerror or str(failure)
    return None


class Admin:
    """A cluster by its address. Methods block, for DEADLINE_S seconds at most.

    :raises BrokerUnavailable: no answer until then.
    """

    def __init__(self, bootstrap: str) -> None:
        require_reachable(bootstrap)
        self._bootstrap = bootstrap
        self._client = AdminClient({"bootstrap.servers": bootstrap, "socket.timeout.ms": 5000}, logger=SILENT)

    def broker_count(self) -> int:
        """How many brokers the cluster lists."""
        return len(self._metadata().brokers)

    def topic_names(self, prefix: str) -> list[str]:
        """The names of the topics that begin with `prefix`, sorted."""
        return sorted(name for name in self._metadata().topics if name.startswith(prefix))

    def _metadata(self) -> Any:
        try:
            return self._client.list_topics(timeout=DEADLINE_S)
        except KafkaException as failure:
            raise BrokerUnavailable(f"{self._bootstrap} does not answer: {failure.args[0].str()}") from failure
