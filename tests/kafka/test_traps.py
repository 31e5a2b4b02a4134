"""Each trap of the client library by name, against a real broker: what would go wrong with aiokafka used plainly does not go wrong here."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskStatus
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from infra.broker.cluster import LocalKafka, local_kafka
from schemas.errors import BrokerError, BrokerUnavailable, OutcomeUnknown, RetentionPassed, SetupError
from streams.broker import Broker, Message, Outgoing, Place, Reader, TopicSpec
from streams.kafka import KafkaBroker

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0


@pytest.fixture
def broker(kafka_bootstrap: str) -> KafkaBroker:
    """On the broker of the whole run: for traps that leave it alone."""
    return KafkaBroker(kafka_bootstrap, client_id="traps", deadline_s=20.0)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[LocalKafka]:
    """A broker of the test's own, to be frozen and killed."""
    try:
        async with local_kafka(tmp_path) as kafka:
            yield kafka
    except SetupError as missing:
        pytest.skip(f"no local Kafka to disturb: {missing}")


async def new_topic(broker: Broker, namespace: str, **config: str) -> Place:
    await broker.create_topics([TopicSpec(f"{namespace}t", 1, {key.replace("_", "."): value for key, value in config.items()})])
    return Place(f"{namespace}t", 0)


def outgoing(place: Place, value: bytes) -> Outgoing:
    return Outgoing(*place, key=b"k", value=value)


async def read_to_end(reader: Reader, place: Place) -> list[bytes | None]:
    found: list[Message] = []
    with anyio.fail_after(DEADLINE_S):
        end = await reader.end(place)
        while reader.position(place) < end:
            found += await reader.read(timeout_s=0.2)
    return [message.value for message in found]


async def stands(broker: Broker, place: Place, *, committed: bool = False) -> list[bytes | None]:
    async with broker.reader({place: 0}, committed=committed) as reader:
        return await read_to_end(reader, place)


async def test_trap_1_a_transaction_with_a_failed_send_does_not_commit(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace, max_message_bytes="2000")
    with pytest.raises(OutcomeUnknown):
        async with broker.transaction(f"{namespace}id") as transaction:
            await transaction.commit([outgoing(place, b"sibling"), outgoing(place, b"x" * 5_000)])
    async with broker.transaction(f"{namespace}id") as transaction:
        await transaction.commit([])
    assert await stands(broker, place, committed=True) == []


async def test_trap_2_nothing_lands_behind_a_failed_batch(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace, max_message_bytes="2000")
    async with broker.producer() as producer:
        failing = await producer.send(outgoing(place, b"x" * 5_000))
        with pytest.raises(OutcomeUnknown):
            await failing
        with pytest.raises(OutcomeUnknown, match="broken"):
            await producer.send(outgoing(place, b"behind"))
    assert await stands(broker, place) == []


async def test_trap_3_no_call_outlives_its_deadline_on_a_frozen_broker(cluster: LocalKafka, namespace: str) -> None:
    broker = KafkaBroker(cluster.bootstrap, client_id="traps", deadline_s=3.0)
    place = await new_topic(broker, namespace)
    with anyio.fail_after(DEADLINE_S):
        async with broker.producer() as producer:
            await (await producer.send(outgoing(place, b"a")))
            cluster.freeze()
            acknowledgement = await producer.send(outgoing(place, b"b"))
            with pytest.raises(OutcomeUnknown):
                await acknowledgement
        for call in (broker.ends([place]), broker.committed("g", [place]), _enter(broker.producer()), _enter(broker.reader({place: 0}))):
            with pytest.raises(BrokerUnavailable):
                await call
    cluster.thaw()


async def _enter(context: AbstractAsyncContextManager[object]) -> None:
    async with context:
        pass


async def test_trap_4_many_waiting_senders_of_one_partition_keep_their_order(broker: KafkaBroker, namespace: str) -> None:
    """More bytes than fit in flight: 2,000 tasks wait for room, and leave in the order in which they came."""
    place = await new_topic(broker, namespace)
    offsets: dict[int, int] = {}

    async def send(number: int) -> None:
        offsets[number] = await (await producer.send(outgoing(place, b"%06d" % number + b"x" * 20_000)))

    with anyio.fail_after(DEADLINE_S):
        async with broker.producer() as producer, anyio.create_task_group() as tasks:
            for number in range(2_000):
                tasks.start_soon(send, number)
    assert [offsets[number] for number in range(2_000)] == list(range(2_000))


async def test_trap_5_a_cancelled_wait_for_an_acknowledgement_is_not_a_no(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace)
    async with broker.producer(linger_ms=50) as producer:
        acknowledgement = await producer.send(outgoing(place, b"first"))
        with anyio.move_on_after(0) as scope:
            await acknowledgement
        assert scope.cancelled_caught
        assert await (await producer.send(outgoing(place, b"second"))) == 1
    assert await stands(broker, place) == [b"first", b"second"]


async def test_trap_6_a_cancelled_member_leaves_and_a_cancelled_producer_flushes(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace)

    async def live(*, task_status: TaskStatus[None]) -> None:
        async with broker.group_reader(f"{namespace}g", [place.topic]), broker.producer(linger_ms=500) as producer:
            await producer.send(outgoing(place, b"a"))
            task_status.started()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:
        await tasks.start(live)
        tasks.cancel_scope.cancel()
    with anyio.fail_after(8.0):  # the session time-out, after which a leaked member would be put out, is 10 s
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            assert member.assignment() == {place}
    assert await stands(broker, place) == [b"a"]


async def test_trap_7_a_cancelled_transaction_does_not_hinder_the_next(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace)
    for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02):
        with anyio.CancelScope() as scope:
            async with broker.transaction(f"{namespace}id") as transaction:
                scope.deadline = anyio.current_time() + delay_s
                await transaction.commit([outgoing(place, b"cancelled")])
        async with broker.transaction(f"{namespace}id") as transaction:
            await transaction.commit([outgoing(place, b"next")])
    async with broker.transaction(f"{namespace}id"):
        pass  # begins after the last commit is visible
    assert (await stands(broker, place, committed=True)).count(b"next") == 5


async def test_trap_8_bytes_of_any_kind_are_read_as_they_are(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace)
    values = [b"", b"\xff\xfe\x00", b"\x93NUMPY", b"good"]
    async with broker.producer() as producer:
        for value in values:
            await (await producer.send(outgoing(place, value)))
    assert await stands(broker, place) == values


async def test_trap_10_a_lost_position_is_an_error_and_a_new_group_starts_at_the_beginning(
    broker: KafkaBroker, namespace: str, kafka_bootstrap: str
) -> None:
    place = await new_topic(broker, namespace)
    async with broker.producer() as producer:
        for value in (b"a", b"b", b"c"):
            await (await producer.send(outgoing(place, value)))
    async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
        with anyio.fail_after(DEADLINE_S):
            while not (found := await member.read(timeout_s=0.2)):
                pass
    assert found[0].offset == 0
    delete_before(kafka_bootstrap, place, 2)
    async with broker.reader({place: 0}) as reader:
        with pytest.raises(RetentionPassed, match="position 0, the first record left is 2"):
            await read_to_end(reader, place)


def delete_before(bootstrap: str, place: Place, offset: int) -> None:
    """What retention does, at once."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for answer in admin.delete_records([TopicPartition(*place, offset)]).values():
        answer.result(timeout=DEADLINE_S)


async def test_trap_13_the_committed_offset_of_an_outsider_is_not_fenced_but_a_member_is(broker: KafkaBroker, namespace: str) -> None:
    """Groups do not fence `assign` readers: commits of any of them stand. Own epochs (R1) are the fence, and members keep outsiders out."""
    place = await new_topic(broker, namespace)
    await broker.commit(f"{namespace}g", {place: (1, "epoch 4")})
    await broker.commit(f"{namespace}g", {place: (0, "epoch 9")})
    assert await broker.committed(f"{namespace}g", [place]) == {place: (0, "epoch 9")}
    async with broker.group_reader(f"{namespace}g", [place.topic]):
        with pytest.raises(BrokerError):
            await broker.commit(f"{namespace}g", {place: (1, "epoch 4")})


async def test_trap_14_a_reader_outlives_its_broker_and_says_when_it_is_gone(cluster: LocalKafka, namespace: str) -> None:
    broker = KafkaBroker(cluster.bootstrap, client_id="traps", deadline_s=6.0)
    place = await new_topic(broker, namespace)
    patient = KafkaBroker(cluster.bootstrap, client_id="traps", deadline_s=DEADLINE_S)
    async with patient.producer() as producer, broker.reader({place: 0}) as reader:
        await (await producer.send(outgoing(place, b"a")))
        assert await read_to_end(reader, place) == [b"a"]
        cluster.kill()
        with pytest.raises(BrokerUnavailable):
            await read_for_ever(reader)
        await anyio.to_thread.run_sync(cluster.restart)
        await (await producer.send(outgoing(place, b"b")))
        with anyio.fail_after(DEADLINE_S):
            while not (found := await reader.read(timeout_s=0.5)):
                pass
        assert [message.value for message in found] == [b"b"]


async def read_for_ever(reader: Reader) -> None:
    with anyio.fail_after(DEADLINE_S):
        while True:
            await reader.read(timeout_s=0.5)


async def test_trap_18_the_end_is_reached_by_position_not_by_the_last_record(broker: KafkaBroker, namespace: str) -> None:
    place = await new_topic(broker, namespace)
    async with broker.transaction(f"{namespace}id") as transaction:
        (offset,) = await transaction.commit([outgoing(place, b"a")])
    async with broker.transaction(f"{namespace}id"), broker.reader({place: 0}, committed=True) as reader:
        assert await read_to_end(reader, place) == [b"a"]
        assert await reader.end(place) == reader.position(place) == offset + 2


async def test_trap_19_a_broker_that_is_away_does_not_flood_the_log(caplog: pytest.LogCaptureFixture, unused_port: int) -> None:
    broker = KafkaBroker(f"127.0.0.1:{unused_port}", client_id="traps", deadline_s=2.0)
    with caplog.at_level(logging.WARNING), pytest.raises(BrokerUnavailable):
        await _enter(broker.producer())
    lines = [record for record in caplog.records if record.name.startswith("aiokafka")]
    assert len(lines) <= len({(record.name, record.msg) for record in lines})


@pytest.fixture
def unused_port() -> int:
    """A port where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
