"""`deadletter` on a real Kafka: a letter is listed, shown, written again once, and remembered as settled by another process."""

from __future__ import annotations

import json

import anyio
import pytest

from infra.cli.main import execute
from schemas.deadletter import DeadLetter
from schemas.score import Score
from schemas.topics import DEADLETTER, SCORES
from streams.codec import encode
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics

pytestmark = pytest.mark.kafka


def buried(topic: str, offset: int, value: bytes, headers: dict[str, bytes]) -> DeadLetter:
    return DeadLetter(
        topic=topic, partition=1, offset=offset, reason="planted", reader="trainer", original_key=b"9", original_value=value,
        original_headers=headers,
    )  # fmt: skip


@pytest.fixture
def log(kafka_bootstrap: str, namespace: str) -> Log:
    log = Log(KafkaBroker(kafka_bootstrap, client_id="test-deadletter"), namespace, "test")
    good = encode("", 1, Score(trajectory=4, session=9, rule="r", value=0.5))

    async def plant() -> None:
        await ensure_topics(log.broker, namespace, 2)
        async with log.writer() as writer:
            await writer.send(DEADLETTER, 0, buried("scores", 5, good.value or b"", dict(good.headers)))
            await writer.send(DEADLETTER, 0, buried("sessions", 6, b"\xc1", {}))

    anyio.run(plant)
    return log


async def scores(log: Log) -> list[object]:
    async with log.follow_all(SCORES) as reader:
        return [entry.record for entry in await reader.read_to_end([0, 1])]


def test_an_operator_settles_letters(log: Log, kafka_bootstrap: str, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--bootstrap", kafka_bootstrap, "--namespace", log.namespace]

    def said(*command: str, code: int = 0) -> str:
        capsys.readouterr()
        assert execute(["deadletter", *command, *flags]) == code
        return capsys.readouterr().out

    assert [case["state"] for case in json.loads(said("list", "-f", "json"))] == ["open", "open"]
    assert json.loads(said("show", "0", "-f", "json"))["value"]["rule"] == "r"
    outcome = said("redrive", "--all", "--reason", "upgraded", code=1)
    assert "0 scores[1]@5 redriven" in outcome
    assert "1 sessions[1]@6 refused" in outcome
    assert "nothing to do" in said("redrive", "0")
    assert anyio.run(scores, log) == [Score(trajectory=4, session=9, rule="r", value=0.5)]
    said("discard", "1", "--reason", "garbage")
    assert said("list").strip() == "no open dead letters"
    assert "redriven because upgraded" in said("list", "--all")
    said("show", "7", code=2)
    said("redrive", code=2)
    assert execute(["status", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["dead_letters"] == 0
