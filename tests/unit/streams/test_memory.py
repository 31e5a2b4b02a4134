"""The faults of the double, which no contract test can reach: what lands late, what is lost, what was never acknowledged."""

from __future__ import annotations

import random

import anyio
import pytest

from schemas.errors import OutcomeUnknown, Superseded
from streams.broker import Outgoing, Place, TopicSpec
from streams.memory import MemoryBroker, MemoryTransaction, Outbox

pytestmark = pytest.mark.anyio

FIRST, SECOND = Place("t", 0), Place("t", 1)


@pytest.fixture
async def broker() -> MemoryBroker:
    broker = MemoryBroker(clock=lambda: 12.5)
    await broker.create_topics([TopicSpec("t", 2, {})])
    return broker


def outgoing(place: Place, value: bytes) -> Outgoing:
    return Outgoing(*place, key=None, value=value)


async def log_of(broker: MemoryBroker, place: Place, *, committed: bool = False) -> list[bytes | None]:
    async with broker.reader({place: 0}, committed=committed) as reader:
        return [message.value for message in await reader.read(timeout_s=0)]


async def test_the_clock_given_stamps_the_records(broker: MemoryBroker) -> None:
    async with broker.producer() as producer, broker.reader({FIRST: 0}) as reader:
        await (await producer.send(outgoing(FIRST, b"a")))
        assert [message.timestamp_ms for message in await reader.read(timeout_s=0)] == [12_500]


async def test_held_messages_land_when_told_in_order_per_partition(broker: MemoryBroker) -> None:
    broker.held = True
    async with broker.producer() as producer:
        first, second, other = [
            await producer.send(outgoing(place, value)) for place, value in ((FIRST, b"1"), (FIRST, b"2"), (SECOND, b"x"))
        ]
        (outbox,) = broker.outboxes
        assert outbox.waiting() == {FIRST: 2, SECOND: 1}
        assert outbox.land(SECOND) == 0
        assert await other == 0
        assert await log_of(broker, FIRST) == []
        assert [outbox.land(FIRST), outbox.land(FIRST)] == [0, 1]
        assert [await first, await second] == [0, 1]
    assert await log_of(broker, FIRST) == [b"1", b"2"]


async def test_messages_land_although_their_producer_died(broker: MemoryBroker) -> None:
    broker.held = True
    async with broker.producer() as producer:
        acknowledgement = await producer.send(outgoing(FIRST, b"late"))
    with pytest.raises(OutcomeUnknown):
        await acknowledgement
    (outbox,) = broker.outboxes
    outbox.land(FIRST)
    assert await log_of(broker, FIRST) == [b"late"]


async def test_what_landed_unacknowledged_stays_unknown(broker: MemoryBroker) -> None:
    broker.held = True
    async with broker.producer() as producer:
        acknowledgement = await producer.send(outgoing(FIRST, b"a"))
        (outbox,) = broker.outboxes
        outbox.land(FIRST, acknowledge=False)
        with anyio.move_on_after(0) as scope:
            await acknowledgement
        assert scope.cancelled_caught
        outbox.fail()
        with pytest.raises(OutcomeUnknown):
            await acknowledgement
    assert await log_of(broker, FIRST) == [b"a"]


async def test_a_loss_is_a_suffix_and_breaks_the_producer(broker: MemoryBroker) -> None:
    broker.held = True
    async with broker.producer() as producer:
        for value in (b"1", b"2", b"3"):
            await producer.send(outgoing(FIRST, value))
        (outbox,) = broker.outboxes
        outbox.lose(FIRST, keep=1)
        with pytest.raises(OutcomeUnknown):
            await producer.send(outgoing(FIRST, b"4"))
        outbox.land(FIRST)
        assert outbox.waiting() == {}
    assert await log_of(broker, FIRST) == [b"1"]


@pytest.mark.parametrize("seed", range(20))
async def test_every_schedule_leaves_a_prefix_of_what_was_sent(broker: MemoryBroker, seed: int) -> None:
    chance = random.Random(seed)
    sent = [b"%d" % index for index in range(10)]
    broker.held = True
    async with broker.producer() as producer:
        (outbox,) = broker.outboxes
        for value in sent:
            if outbox.broken:
                break
            await producer.send(outgoing(FIRST, value))
            disturb(outbox, chance)
    while outbox.waiting():
        disturb(outbox, chance)
    found = await log_of(broker, FIRST)
    assert found == sent[: len(found)]


def disturb(outbox: Outbox, chance: random.Random) -> None:
    """One step of a schedule."""
    waiting = outbox.waiting().get(FIRST, 0)
    drawn = chance.random()
    if waiting and drawn < 0.5:
        outbox.land(FIRST, acknowledge=chance.random() < 0.8)
    elif waiting and drawn < 0.6:
        outbox.lose(FIRST, keep=chance.randrange(waiting))


async def test_a_committed_reader_stops_before_the_first_open_transaction(broker: MemoryBroker) -> None:
    async with broker.producer() as producer, broker.transaction("id") as transaction:
        assert isinstance(transaction, MemoryTransaction)
        await (await producer.send(outgoing(FIRST, b"before")))
        assert transaction.stage([outgoing(FIRST, b"inside")]) == [1]
        await (await producer.send(outgoing(FIRST, b"behind")))
        assert await broker.ends([FIRST], committed=True) == {FIRST: 1}
        assert await log_of(broker, FIRST, committed=True) == [b"before"]
        assert await log_of(broker, FIRST) == [b"before", b"inside", b"behind"]
        transaction.finish("committed")
    assert await log_of(broker, FIRST, committed=True) == [b"before", b"inside", b"behind"]
    assert await broker.ends([FIRST], committed=True) == {FIRST: 4}


async def test_fencing_aborts_what_the_older_transaction_wrote(broker: MemoryBroker) -> None:
    async with broker.transaction("id") as older:
        assert isinstance(older, MemoryTransaction)
        older.stage([outgoing(FIRST, b"old")])
        async with broker.transaction("id") as younger:
            with pytest.raises(Superseded):
                older.finish("committed")
            await younger.commit([outgoing(FIRST, b"new")])
    assert await log_of(broker, FIRST, committed=True) == [b"new"]
    assert await log_of(broker, FIRST) == [b"old", b"new"]


@pytest.mark.parametrize(("fault", "stands"), [("answer lost", [b"a"]), ("write lost", [])])
async def test_a_commit_of_unknown_outcome_stands_or_not(broker: MemoryBroker, fault: str, stands: list[bytes]) -> None:
    broker.commit_faults.append("answer lost" if fault == "answer lost" else "write lost")
    with pytest.raises(OutcomeUnknown):
        async with broker.transaction("id") as transaction:
            await transaction.commit([outgoing(FIRST, b"a")])
    assert await log_of(broker, FIRST, committed=True) == stands
