"""The writer loses nothing and keeps its order, whatever happens to its producers (kafka.md's traps 2, 3 and 5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from random import Random

import anyio
import pytest

from schemas.errors import BrokerUnavailable
from streams import writer as writer_module
from streams.broker import Outgoing, Place, TopicSpec
from streams.memory import MemoryBroker
from streams.writer import Receipt, Writer, WriterOptions, open_writer

pytestmark = pytest.mark.anyio

PLACE = Place("t", 0)


def note(number: int) -> Outgoing:
    return Outgoing("t", 0, None, b"%d" % number)


@asynccontextmanager
async def topic() -> AsyncIterator[MemoryBroker]:
    broker = MemoryBroker()
    await broker.create_topics([TopicSpec("t", 1, {})])
    yield broker


async def written(broker: MemoryBroker) -> list[int]:
    async with broker.reader({PLACE: 0}) as reader:
        end = await reader.end(PLACE)
        values: list[int] = []
        while reader.position(PLACE) < end:
            values += [int(message.value or b"") for message in await reader.read(timeout_s=1)]
        return values


async def test_receipts_answer_the_offsets_in_order() -> None:
    async with topic() as broker, open_writer(broker) as writer:
        receipts = [await writer.send(note(number)) for number in range(5)]
        assert [await receipt for receipt in receipts] == [0, 1, 2, 3, 4]


async def test_leaving_flushes() -> None:
    async with topic() as broker:
        async with open_writer(broker) as writer:
            for number in range(100):
                await writer.send(note(number))
        assert await written(broker) == list(range(100))


async def land_half_and_break(broker: MemoryBroker, random: Random) -> None:
    """One fault: some of what waits lands, some of that is acknowledged, the producer breaks, and the rest lands or is lost."""
    with anyio.fail_after(5):
        while not (living := [box for box in broker.outboxes if not box.broken]):
            await anyio.sleep(0.001)
    outbox = living[0]
    waiting = outbox.waiting().get(PLACE, 0)
    for _ in range(random.randint(0, waiting)):
        outbox.land(PLACE, acknowledge=random.random() < 0.5)
    left = outbox.waiting().get(PLACE, 0)
    if left:
        outbox.lose(PLACE, keep=random.randint(0, left))
    outbox.fail()
    while outbox.waiting():
        outbox.land(PLACE)


@pytest.mark.parametrize("seed", range(40))
async def test_r2_after_an_unknown_outcome_the_same_messages_go_again_in_the_same_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    print("seed", seed)
    monkeypatch.setattr(writer_module, "PAUSE_S", 0.001)
    random = Random(seed)
    async with topic() as broker:
        broker.held = True
        async with open_writer(broker) as writer:
            sent = 0
            for _ in range(4):
                for _ in range(random.randint(1, 5)):
                    await writer.send(note(sent))
                    sent += 1
                await land_half_and_break(broker, random)
            release(broker)
        values = await written(broker)
    firsts = list(dict.fromkeys(values))
    assert firsts == list(range(sent)), "each message reaches the log, the first copies in order"
    assert is_resent_runs(values), "what comes again comes as a run that continues to the end of what was sent"


def is_resent_runs(values: list[int]) -> bool:
    """Each step back is to a message already written, and from there the order is kept: no gap ever opens."""
    top = -1
    for before, value in zip([-1, *values], values, strict=False):
        if value != before + 1 and value > top:
            return False
        top = max(top, value)
    return True


async def test_a_full_writer_waits_for_room_and_holds_no_more() -> None:
    async with topic() as broker:
        broker.held = True
        options = WriterOptions(in_flight_bytes=1000)
        async with open_writer(broker, options) as writer:
            sent: list[Receipt] = []
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(send_many, writer, sent, 100)
                await anyio.wait_all_tasks_blocked()
                assert 0 < len(sent) < 100
                release(broker)
        assert await written(broker) == list(range(100))


async def send_many(writer: Writer, sent: list[Receipt], count: int) -> None:
    for number in range(count):
        sent += [await writer.send(note(number))]


def release(broker: MemoryBroker) -> None:
    """No more faults: what waits lands."""
    broker.held = False
    for outbox in broker.outboxes:
        while outbox.waiting():
            outbox.land(PLACE)


class NeverThere(MemoryBroker):
    """A broker that no producer reaches."""

    @asynccontextmanager
    async def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AsyncIterator[None]:  # type: ignore[override]
        raise BrokerUnavailable("nobody answers")
        yield


async def test_r10_a_broker_that_stays_away_ends_the_writer() -> None:
    with pytest.RaisesGroup(BrokerUnavailable, flatten_subgroups=True):
        async with open_writer(NeverThere(), WriterOptions(patience_s=0.3)) as writer:
            await writer.send(note(0))


async def test_r10_whoever_is_shielded_against_the_end_of_a_role_does_not_wait_for_a_writer_that_has_ended() -> None:
    async def last_word(writer: Writer) -> None:
        with anyio.CancelScope(shield=True):
            await writer.send(note(0))

    with pytest.RaisesGroup(BrokerUnavailable, BrokerUnavailable, flatten_subgroups=True):
        async with open_writer(NeverThere(), WriterOptions(patience_s=0.3)) as writer, anyio.create_task_group() as tasks:
            tasks.start_soon(last_word, writer)


class RefusesOnce(MemoryBroker):
    """A broker one of whose producers does not take the message `1` in time, and would take those after it."""

    has_refused = False

    @asynccontextmanager
    async def producer(self, *, linger_ms: int = 0, compress: bool = False) -> AsyncIterator[RefusesOnce]:  # type: ignore[override]
        async with super().producer(linger_ms=linger_ms, compress=compress) as self._real:
            yield self

    async def send(self, message: Outgoing) -> Awaitable[int]:
        """As a producer does."""
        if message.value == b"1" and not self.has_refused:
            self.has_refused = True
            raise BrokerUnavailable("no answer within the deadline")
        return await self._real.send(message)


async def test_r2_nothing_overtakes_a_message_that_a_producer_did_not_take() -> None:
    broker = RefusesOnce()
    await broker.create_topics([TopicSpec("t", 1, {})])
    async with open_writer(broker) as writer:
        for number in range(5):
            await writer.send(note(number))
    assert list(dict.fromkeys(await written(broker))) == [0, 1, 2, 3, 4]
