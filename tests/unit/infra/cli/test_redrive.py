"""Dead letters settled on the broker in memory: what is written again, what is refused, and that all of it happens once."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgpack
import pytest

from infra.cli.letters import Case, Letters, Origin
from infra.cli.redrive import discard, read_letters, redrive
from schemas.deadletter import DeadLetter, Settlement
from schemas.errors import OutcomeUnknown, UsageError
from schemas.score import Score
from schemas.topics import DEADLETTER, SCORES, SESSIONS, TRAJECTORIES, Topic
from schemas.trajectory import Trajectory
from streams.blobs import Blobs
from streams.broker import Headers, Message, Outgoing, Transaction
from streams.codec import Entry, encode
from streams.log import Log
from streams.memory import MemoryBroker
from tests.unit.workers.running import append, entries, memory_log

pytestmark = pytest.mark.anyio

GOOD = encode("scores", 1, Score(trajectory=4, session=9, rule="r", value=0.5))


def letter(topic: Topic, value: bytes, headers: Headers, offset: int = 5, reader: str = "trainer") -> DeadLetter:
    return DeadLetter(
        topic=topic.name, partition=1, offset=offset, reason="too new", reader=reader, original_key=b"9", original_value=value,
        original_headers=dict(headers),
    )  # fmt: skip


def bury_good(log: Log, offset: int = 5, reader: str = "trainer") -> int:
    """A Score that another software wrote and this one can read."""
    assert GOOD.value is not None
    return append(log, DEADLETTER, 0, letter(SCORES, GOOD.value, GOOD.headers, offset, reader))


def raw(log: Log, topic: Topic, partition: int = 1) -> list[Message]:
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    partition_log = broker.log(log.place(topic, partition))
    return list(partition_log.read(0, 1 << 30, committed=True)[0])


def everything(letters: Letters) -> list[Case]:
    return letters.cases()


async def test_the_very_bytes_come_back_once() -> None:
    log = await memory_log()
    number = bury_good(log)
    first = await redrive(log, lambda letters: [letters.find(number)], "upgraded")
    again = await redrive(log, lambda letters: [letters.find(number)], "upgraded")
    assert [(outcome.did, bool(outcome.why)) for outcome in (*first, *again)] == [("redriven", False), ("redriven", True)]
    (message,) = raw(log, SCORES)
    assert (message.partition, message.key, message.value, message.headers) == (1, b"9", GOOD.value, GOOD.headers)
    settled = [entry.record for entry in entries(log, DEADLETTER, Settlement)]
    assert settled == [Settlement(letter=number, how="redriven", reason="upgraded")]


async def test_bytes_that_several_readers_buried_come_back_once() -> None:
    log = await memory_log()
    for reader in ("trainer", "source", "trainer"):
        bury_good(log, reader=reader)
    (outcome,) = await redrive(log, everything, "")
    assert (outcome.case.ids, outcome.case.readers) == ([0, 1, 2], ["trainer", "source"])
    assert len(raw(log, SCORES)) == 1
    assert not (await read_letters(log)).cases()


async def test_a_discarded_letter_is_not_redriven() -> None:
    log = await memory_log()
    bury_good(log)
    await discard(log, everything, "planted by a test")
    assert not await redrive(log, everything, "")
    (outcome,) = await redrive(log, lambda letters: [letters.find(0)], "")
    assert (outcome.did, outcome.case.settlement) == ("discarded", Settlement(letter=0, how="discarded", reason="planted by a test"))
    assert not raw(log, SCORES)


async def test_what_is_still_unreadable_is_not_written_again() -> None:
    log = await memory_log()
    append(log, DEADLETTER, 0, letter(SCORES, b"\xc1", GOOD.headers))
    (outcome,) = await redrive(log, everything, "")
    assert outcome.did is None
    assert "cannot read" in outcome.why
    assert len((await read_letters(log)).cases()) == 1


async def test_sessions_are_never_written_again() -> None:
    log = await memory_log()
    append(log, DEADLETTER, 0, letter(SESSIONS, msgpack.packb({"type": "Cancel", "session": 1, "request": 2}), ()))
    (outcome,) = await redrive(log, everything, "")
    assert outcome.did is None
    assert "order is the meaning" in outcome.why
    assert not raw(log, SESSIONS)


@pytest.mark.parametrize(("closes", "did"), [([], "redriven"), ([13], "redriven"), ([13, 15], None), ([14], None)])
async def test_a_trajectory_comes_back_while_no_later_close_follows(closes: list[int], did: str | None) -> None:
    log = await memory_log()
    for close in closes:
        append(log, TRAJECTORIES, 1, Trajectory(session=close - 5, close=close))
    lost = encode("trajectories", 1, Trajectory(session=9, close=14))
    assert lost.value is not None
    append(log, DEADLETTER, 0, letter(TRAJECTORIES, lost.value, lost.headers, offset=0))
    (outcome,) = await redrive(log, everything, "")
    assert outcome.did == did
    assert [entry.record.close for entry in entries(log, TRAJECTORIES, Trajectory)] == [*closes, *([14] if did else [])]


async def test_trajectories_come_back_in_the_order_in_which_they_stood() -> None:
    log = await memory_log()
    for offset, close in ((7, 20), (3, 14)):
        lost = encode("trajectories", 1, Trajectory(session=close - 5, close=close))
        assert lost.value is not None
        append(log, DEADLETTER, 0, letter(TRAJECTORIES, lost.value, lost.headers, offset=offset))
    outcomes = await redrive(log, lambda letters: [letters.find(0), letters.find(1)], "")
    assert [outcome.did for outcome in outcomes] == ["redriven", "redriven"]
    assert [entry.record.close for entry in entries(log, TRAJECTORIES, Trajectory)] == [14, 20]


async def test_a_trajectory_that_stands_in_the_log_is_not_doubled_and_that_is_said() -> None:
    log = await memory_log()
    stands = Trajectory(session=9, close=14)
    append(log, TRAJECTORIES, 1, stands)
    message = encode("trajectories", 1, stands)
    assert message.value is not None
    append(log, DEADLETTER, 0, letter(TRAJECTORIES, message.value, message.headers, offset=0))
    (outcome,) = await redrive(log, everything, "")
    assert (outcome.did, "itself stands in the log, at offset 0" in outcome.why) == (None, True)


async def test_what_was_buried_whole_and_is_large_goes_through_the_blob_store(tmp_path: Path) -> None:
    log = replace(await memory_log(), blobs=Blobs(str(tmp_path)))
    large = encode("scores", 1, Score(trajectory=4, session=9, rule="r", value=0.5, detail="x" * (2 << 20)))
    assert large.value is not None
    append(log, DEADLETTER, 0, letter(SCORES, large.value, large.headers))
    (outcome,) = await redrive(log, everything, "")
    assert outcome.did == "redriven"
    (message,) = raw(log, SCORES)
    assert len(message.value or b"") < 1000
    assert (await log.blobs.check_out(message)).value == large.value


@pytest.mark.parametrize("is_back", [True, False])
async def test_what_was_buried_for_its_blob_comes_back_once_the_blob_does(is_back: bool) -> None:
    log = replace(await memory_log(), blobs=Blobs(f"memory://{secrets.token_hex(4)}"))
    large = await log.outgoing(TRAJECTORIES, 1, Trajectory(session=9, close=14, payload={"text": "x" * (1 << 20)}))
    assert large.value is not None
    append(log, DEADLETTER, 0, letter(TRAJECTORIES, large.value, large.headers, offset=0))
    if not is_back:
        (stored,) = await log.blobs.find()
        await log.blobs.remove(stored)
    (outcome,) = await redrive(replace(log, blobs=Blobs()), everything, "")
    assert (outcome.did, "does not exist" in outcome.why) == (("redriven", False) if is_back else (None, True))
    assert [message.value for message in raw(log, TRAJECTORIES)] == [large.value] * is_back


async def test_a_transaction_whose_answer_is_lost_writes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await memory_log()
    bury_good(log)
    broker = log.broker
    transaction, losses = broker.transaction, ["one"]

    @asynccontextmanager
    async def deaf(name: str) -> AsyncIterator[Transaction]:
        async with transaction(name) as inner:
            yield Deaf(inner, losses)

    monkeypatch.setattr(broker, "transaction", deaf)
    monkeypatch.setattr("infra.cli.redrive.PAUSE_S", 0.0)
    (outcome,) = await redrive(log, everything, "")
    assert (outcome.did, losses, len(raw(log, SCORES))) == ("redriven", [], 1)


class Deaf(Transaction):
    """Commits, and does not hear that it did."""

    def __init__(self, inner: Transaction, losses: list[str]) -> None:
        self._inner, self._losses = inner, losses

    async def commit(self, messages: list[Outgoing]) -> list[int]:  # type: ignore[override]
        offsets = await self._inner.commit(messages)
        if self._losses:
            self._losses.pop()
            raise OutcomeUnknown("the answer was lost")
        return offsets


def test_letters_fold_into_cases() -> None:
    records = [
        letter(SCORES, b"a", (), 5), letter(SCORES, b"a", (), 5, reader="source"), letter(SCORES, b"b", (), 6),
        Settlement(letter=1, how="discarded", reason="first"), Settlement(letter=0, how="redriven"), Settlement(letter=99, how="redriven"),
    ]  # fmt: skip
    letters = Letters(Entry(0, offset, 1000 + offset, record) for offset, record in enumerate(records))
    assert [(case.id, case.state) for case in letters.cases(everything=True)] == [(0, "discarded"), (2, "open")]
    assert letters.find(1) is letters.find(0)
    assert letters.find(2).origin == Origin("scores", 1, 6)
    assert not letters.cases(matching="another reason")
    with pytest.raises(UsageError, match="no dead letter 7"):
        letters.find(7)
