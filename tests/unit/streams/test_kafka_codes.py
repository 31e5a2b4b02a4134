"""Answers that say "later" or "elsewhere" in ways that aiokafka takes for an end, from librdkafka's mock broker."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest
from aiokafka import errors

from schemas.errors import BrokerError, BrokerUnavailable, SetupError, TopicMismatch
from streams.broker import Outgoing, Place
from streams.kafka.client import may_pass
from tests.chaos.mock import Api, MockCluster, MockedBroker, open_mock

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
PLACE = Place("t", 0)
OFFSET_OUT_OF_RANGE, COORDINATOR_NOT_AVAILABLE, GROUP_AUTHORIZATION_FAILED = 1, 15, 30


@pytest.fixture
def mock() -> Iterator[MockCluster]:
    try:
        with open_mock() as cluster:
            cluster.create_topic(PLACE.topic)
            yield cluster
    except SetupError as hidden:
        pytest.skip(str(hidden))


async def test_an_offset_is_out_of_range_only_if_it_is(mock: MockCluster) -> None:
    """A node that is about to lose its partition may say so of any offset."""
    broker = MockedBroker(mock.bootstrap)
    with anyio.fail_after(DEADLINE_S):
        async with broker.producer() as producer, broker.reader({PLACE: 0}) as reader:
            await (await producer.send(Outgoing(*PLACE, key=b"k", value=b"a")))
            mock.answer(Api.FETCH, [OFFSET_OUT_OF_RANGE] * 2)
            while not (found := await reader.read(timeout_s=0.5)):
                pass
            assert [message.value for message in found] == [b"a"]
        async with broker.reader({PLACE: 7}) as reader:
            with pytest.raises(TopicMismatch, match="position 7 lies beyond the end"):
                await reader.read(timeout_s=DEADLINE_S)


async def test_committed_offsets_are_asked_for_until_the_coordinator_is_there(mock: MockCluster) -> None:
    broker = MockedBroker(mock.bootstrap)
    with anyio.fail_after(DEADLINE_S):
        await broker.commit("g", {PLACE: (5, "epoch=1;")})
        mock.answer(Api.OFFSET_FETCH, [COORDINATOR_NOT_AVAILABLE] * 2)
        assert await broker.committed("g", [PLACE]) == {PLACE: (5, "epoch=1;")}
        mock.answer(Api.OFFSET_FETCH, [GROUP_AUTHORIZATION_FAILED])
        with pytest.raises(BrokerError) as refusal:
            await broker.committed("g", [PLACE])
    assert not isinstance(refusal.value, BrokerUnavailable)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (errors.NotLeaderForPartitionError(), True),
        (errors.KafkaConnectionError(), True),
        (errors.StaleLeaderEpochCodeError(), True),
        (errors.KafkaError("GroupCoordinatorNotAvailableError()"), True),
        (errors.KafkaError("[Error 14] GroupLoadInProgressError"), False),
        (errors.KafkaError("TopicAuthorizationFailedError()"), False),
        (errors.KafkaError(), False),
        (errors.UnknownTopicOrPartitionError(), False),
        (errors.KafkaError("UnknownTopicOrPartitionError()"), False),
    ],
)
def test_what_may_pass(error: errors.KafkaError, expected: bool) -> None:
    assert may_pass(error) is expected
