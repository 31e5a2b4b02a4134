"""Which answers of a cluster mean "ask again": those that Kafka's protocol calls retriable and a starting or moving leader gives."""

from __future__ import annotations

import gc
from concurrent.futures import Future
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from confluent_kafka import KafkaError, KafkaException

from schemas.errors import BrokerError, TopicMismatch
from streams.kafka.admin import Admin, _AskAgain, _error
from streams.kafka.client import Connection

pytestmark = pytest.mark.anyio


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


async def test_an_error_that_comes_after_the_question_was_given_up_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    admin = Admin(Connection("nowhere:1", "test", 30.0))
    admin.__dict__["_client"] = None
    later: Future[Any] = Future()
    with anyio.move_on_after(0):
        await admin._ask("ends", lambda client: {"key": later})
    later.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    for _ in range(2):
        await anyio.lowlevel.checkpoint()
    later = Future()
    gc.collect()
    assert caplog.records == []
