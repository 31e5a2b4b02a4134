"""When a cluster is ready: Metadata lists every broker, and a transactional producer starts (it does so later than the ports open)."""

from __future__ import annotations

import secrets

from confluent_kafka import KafkaException, Producer

from infra.broker.admin import SILENT

TRY_S = 5.0
"""How long one try of either check may take."""


def is_ready(bootstrap: str, nodes: int) -> bool:
    """One try at both checks; False where either fails. Blocks for at most twice TRY_S."""
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": f"seamlessflow.ready-{secrets.token_hex(4)}",
        "socket.timeout.ms": 2000,
        "reconnect.backoff.max.ms": 200,
        "retry.backoff.ms": 50,
    }
    producer = Producer(settings, logger=SILENT)
    try:
        if len(producer.list_topics(timeout=TRY_S).brokers) < nodes:
            return False
        producer.init_transactions(TRY_S)
    except KafkaException:
        return False
    return True
