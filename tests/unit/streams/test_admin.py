"""Which answers of a cluster mean "ask again": those that Kafka's protocol calls retriable and a starting or moving leader gives."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from schemas.errors import BrokerError, TopicMismatch
from streams.kafka.admin import _AskAgain, _error


@pytest.mark.parametrize(
    "code",
    [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
    ],
)
def test_a_leader_that_moves_is_asked_again(code: int) -> None:
    assert isinstance(_error(KafkaError(code), "offsets"), _AskAgain)


def test_a_missing_topic_and_a_refusal_are_final() -> None:
    assert isinstance(_error(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), "offsets"), TopicMismatch)
    assert type(_error(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), "offsets")) is BrokerError
