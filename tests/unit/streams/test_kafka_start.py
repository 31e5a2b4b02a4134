"""Starting a Kafka client whose cluster answers late, or not at all: aiokafka says `unknown topic` in either case."""

from __future__ import annotations

import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from aiokafka.errors import UnknownTopicOrPartitionError

from schemas.errors import TopicMismatch
from streams.kafka.client import REQUEST_TIMEOUT_MS, Connection

pytestmark = pytest.mark.anyio


@dataclass
class FakeClient:
    """Does not start where it is broken: no topic is known, `heard_ms` after the cluster last said which there are."""

    is_broken: bool = False
    heard_ms: float = 0.0

    @property
    def _client(self) -> SimpleNamespace:
        cluster = SimpleNamespace(_last_successful_refresh_ms=time.time() * 1000 - self.heard_ms)
        return SimpleNamespace(cluster=cluster, close=self.stop)

    async def start(self) -> None:
        if self.is_broken:
            raise UnknownTopicOrPartitionError

    async def stop(self) -> None:
        pass


async def test_a_topic_is_unknown_only_to_a_client_that_heard_of_topics_lately() -> None:
    clients = [FakeClient(is_broken=True, heard_ms=REQUEST_TIMEOUT_MS), FakeClient()]
    left = iter(clients)
    started = await Connection("nowhere:1", "test", 10.0).started(lambda: next(left), "start")
    assert started is clients[1]


async def test_a_topic_that_the_cluster_does_not_have_is_an_error_at_once() -> None:
    with pytest.raises(TopicMismatch):
        await Connection("nowhere:1", "test", 10.0).started(lambda: FakeClient(is_broken=True, heard_ms=100.0), "start")
