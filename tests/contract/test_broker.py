"""The contract of `streams.broker`. A new broker inherits these classes and brings the fixtures `broker` and `truncate`."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial

import anyio
import pytest
from anyio.abc import TaskStatus
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from schemas.errors import BrokerError, OutcomeUnknown, RetentionPassed, Superseded, TopicMismatch
from streams.broker import MAX_MESSAGE_BYTES, MAX_METADATA, Broker, GroupReader, Message, Outgoing, Place, Producer, Reader, TopicSpec
from streams.kafka import KafkaBroker
from streams.memory import MemoryBroker

pytestmark = pytest.mark.anyio

Truncate = Callable[[Place, int], None]

DEADLINE_S = 30.0
CLOSE_DEADLINE_S = 15.0


async def new_topic(broker: Broker, namespace: str, partitions: int = 1, **config: str) -> list[Place]:
    """A topic of its own for each test; its partitions."""
    name = f"{namespace}t"
    await broker.create_topics([TopicSpec(name, partitions, {key.replace("_", "."): value for key, value in config.items()})])
    return [Place(name, index) for index in range(partitions)]


def outgoing(place: Place, value: bytes) -> Outgoing:
    return Outgoing(place.topic, place.partition, b"key", value)


async def put(producer: Producer, place: Place, *values: bytes) -> list[int]:
    """Send in order, then await all: the offsets."""
    acknowledgements = [await producer.send(outgoing(place, value)) for value in values]
    return [await acknowledgement for acknowledgement in acknowledgements]


async def write(broker: Broker, place: Place, *values: bytes) -> list[int]:
    async with broker.producer() as producer:
        return await put(producer, place, *values)


async def read_to_end(reader: Reader, *places: Place) -> list[Message]:
    """Everything up to the ends as they are now."""
    found: list[Message] = []
    with anyio.fail_after(DEADLINE_S):
        ends = {place: await reader.end(place) for place in places}
        while any(reader.position(place) < end for place, end in ends.items()):
            found += await reader.read(timeout_s=0.2)
    return found


async def read_count(reader: Reader | GroupReader, count: int) -> list[Message]:
    found: list[Message] = []
    with anyio.fail_after(DEADLINE_S):
        while len(found) < count:
            found += await reader.read(timeout_s=0.2)
    return found


async def eventually(holds: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not holds():
            await anyio.sleep(0.02)


async def end_reaches(broker: Broker, place: Place, end: int) -> None:
    """The markers of a commit may come a little after its answer."""
    with anyio.fail_after(DEADLINE_S):
        while await broker.ends([place], committed=True) != {place: end}:
            await anyio.sleep(0.02)


def values(messages: Sequence[Message]) -> list[bytes | None]:
    return [message.value for message in messages]


class LogContract:
    """Reading by position."""

    async def test_messages_come_in_the_order_of_their_sends(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        sent = [b"%d" % index for index in range(500)]
        offsets = await write(broker, place, *sent)
        async with broker.reader({place: 0}) as reader:
            found = await read_to_end(reader, place)
        assert values(found) == sent
        assert [message.offset for message in found] == offsets == sorted(set(offsets))

    async def test_bytes_round_trip(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        cases = [
            Outgoing(*place, key=b"k", value=None),
            Outgoing(*place, key=None, value=b"v"),
            Outgoing(*place, key=b"", value=b""),
            Outgoing(*place, key=bytes(range(256)), value=b"\x00" * 100_000, headers=(("a", b"1"), ("größe", b""), ("a", b"2"))),
        ]
        async with broker.producer(compress=True) as producer:
            for case in cases:
                await (await producer.send(case))
        async with broker.reader({place: 0}) as reader:
            found = await read_to_end(reader, place)
        assert [(m.key, m.value, m.headers) for m in found] == [(c.key, c.value, c.headers) for c in cases]
        assert {(m.topic, m.partition) for m in found} == {place}

    async def test_a_read_without_messages_is_empty(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.reader({place: 0}) as reader:
            assert await reader.read(timeout_s=0.05) == []
            assert reader.position(place) == await reader.end(place) == 0

    async def test_a_read_wakes_up_for_a_message(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        found: list[Message] = []
        async with broker.reader({place: 0}) as reader, anyio.create_task_group() as tasks:

            async def read() -> None:
                found.extend(await reader.read(timeout_s=DEADLINE_S))

            tasks.start_soon(read)
            await write(broker, place, b"a")
        assert values(found) == [b"a"]

    async def test_a_limit_cuts_and_the_rest_follows(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b", b"c")
        async with broker.reader({place: 0}) as reader:
            assert values(await reader.read(timeout_s=DEADLINE_S, limit=2)) == [b"a", b"b"]
            assert reader.position(place) == 2
            assert values(await reader.read(timeout_s=DEADLINE_S, limit=2)) == [b"c"]

    async def test_a_cancelled_read_loses_nothing(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        sent, found, chance = [b"%d" % index for index in range(300)], list[Message](), random.Random(5)

        async def send_slowly(producer: Producer) -> None:
            for value in sent:
                await put(producer, place, value)

        async with broker.producer() as producer, broker.reader({place: 0}) as reader, anyio.create_task_group() as tasks:
            tasks.start_soon(send_slowly, producer)
            with anyio.fail_after(DEADLINE_S):
                while len(found) < len(sent):
                    with anyio.move_on_after(chance.uniform(0, 0.004)):
                        found += await reader.read(timeout_s=1.0, limit=7)
        assert values(found) == sent

    async def test_adding_and_removing_keep_the_other_positions(self, broker: Broker, namespace: str) -> None:
        first, second, third = await new_topic(broker, namespace, 3)
        for place in (first, second, third):
            await write(broker, place, b"0", b"1", b"2", b"3")
        async with broker.reader({first: 0}) as reader:
            assert values(await reader.read(timeout_s=DEADLINE_S, limit=2)) == [b"0", b"1"]
            reader.add({second: 3, third: 1})
            assert [reader.position(place) for place in (first, second, third)] == [2, 3, 1]
            found = await read_count(reader, 6)
            assert sorted((m.partition, m.offset) for m in found) == [(0, 2), (0, 3), (1, 3), (2, 1), (2, 2), (2, 3)]
            reader.remove([second])
            await write(broker, second, b"unseen")
            await write(broker, first, b"4")
            assert values(await read_count(reader, 1)) == [b"4"]

    async def test_what_was_fetched_for_a_removed_partition_is_not_returned(self, broker: Broker, namespace: str) -> None:
        first, second = await new_topic(broker, namespace, 2)
        await write(broker, first, *[b"first"] * 50)
        await write(broker, second, *[b"second"] * 50)
        async with broker.reader({first: 0, second: 0}) as reader:
            await reader.read(timeout_s=DEADLINE_S, limit=1)
            gone, kept = (first, second) if reader.position(first) else (second, first)
            reader.remove([gone])
            assert {m.partition for m in await read_to_end(reader, kept)} == {kept.partition}
            assert await reader.read(timeout_s=0.3) == []

    async def test_a_partition_can_come_back_at_another_offset(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b")
        async with broker.reader({}) as reader:
            for _ in range(3):
                reader.add({place: 1})
                assert values(await read_count(reader, 1)) == [b"b"]
                reader.remove([place])

    async def test_a_position_that_retention_passed_is_an_error(self, broker: Broker, namespace: str, truncate: Truncate) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b", b"c")
        truncate(place, 2)
        assert await broker.starts([place]) == {place: 2}
        async with broker.reader({place: 1}) as reader:
            for _ in range(2):
                with pytest.raises(RetentionPassed):
                    await read_count(reader, 1)
            reader.remove([place])
            reader.add({place: 2})
            assert values(await read_count(reader, 1)) == [b"c"]

    async def test_a_position_beyond_the_end_is_an_error(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a")
        async with broker.reader({place: 5}) as reader:
            with pytest.raises(TopicMismatch, match="beyond the end"):
                await read_count(reader, 1)

    async def test_an_unknown_partition_is_an_error(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        with pytest.raises(TopicMismatch):
            async with broker.reader({Place(place.topic, 1): 0}):
                pass


class ProducerContract:
    """Writing without transactions."""

    async def test_an_acknowledgement_outlives_cancelled_awaits(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.producer() as producer:
            acknowledgement = await producer.send(outgoing(place, b"a"))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await acknowledgement
            assert await acknowledgement == 0
            assert await acknowledgement == 0

    async def test_each_sender_keeps_its_order_beside_others(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)

        async def send(name: int) -> None:
            await put(producer, place, *[b"%d:%03d" % (name, index) for index in range(200)])

        async with broker.producer() as producer, anyio.create_task_group() as tasks:
            for name in range(8):
                tasks.start_soon(send, name)
        async with broker.reader({place: 0}) as reader:
            found = [value or b"" for value in values(await read_to_end(reader, place))]
        assert len(found) == 1600
        for name in range(8):
            own = [value for value in found if value.startswith(b"%d:" % name)]
            assert own == [b"%d:%03d" % (name, index) for index in range(200)]

    async def test_a_failed_send_breaks_the_producer(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace, max_message_bytes="2000")
        async with broker.producer() as producer:
            assert await put(producer, place, b"a") == [0]
            with pytest.raises(OutcomeUnknown):
                await put(producer, place, b"x" * 5_000)
            with pytest.raises(OutcomeUnknown):
                await put(producer, place, b"b")
        assert await write(broker, place, b"c") == [1]

    async def test_what_no_topic_takes_is_refused_at_once(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.producer() as producer:
            with pytest.raises(BrokerError, match="blob store"):
                await producer.send(outgoing(place, b"x" * MAX_MESSAGE_BYTES))
            with pytest.raises(BrokerError, match="neither key nor value"):
                await producer.send(Outgoing(*place, key=None, value=None))
            with pytest.raises(TopicMismatch):
                await producer.send(outgoing(Place(place.topic, 7), b"a"))
            assert await put(producer, place, b"a") == [0]


class TransactionContract:
    """Writing together or not at all."""

    async def test_a_commit_is_seen_together(self, broker: Broker, namespace: str) -> None:
        first, second = await new_topic(broker, namespace, 2)
        async with broker.transaction(f"{namespace}id") as transaction:
            offsets = await transaction.commit([outgoing(first, b"a"), outgoing(second, b"b"), outgoing(first, b"c")])
        async with broker.reader({first: 0, second: 0}, committed=True) as reader:
            found = await read_count(reader, 3)
        assert sorted((m.partition, m.offset, m.value) for m in found) == [
            (0, offsets[0], b"a"), (0, offsets[2], b"c"), (1, offsets[1], b"b"),
        ]

    async def test_markers_leave_gaps_that_positions_pass(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        offsets = []
        for value in (b"a", b"b", b"c"):
            async with broker.transaction(f"{namespace}id") as transaction:
                offsets += await transaction.commit([outgoing(place, value)])
        assert offsets == [0, 2, 4]
        await end_reaches(broker, place, 6)
        for committed in (True, False):
            assert await broker.ends([place], committed=committed) == {place: 6}
            async with broker.reader({place: 0}, committed=committed) as reader:
                assert values(await read_to_end(reader, place)) == [b"a", b"b", b"c"]
                assert reader.position(place) == await reader.end(place) == 6

    async def test_leaving_without_a_commit_leaves_nothing(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.transaction(f"{namespace}id"):
            pass
        with anyio.CancelScope() as scope:
            async with broker.transaction(f"{namespace}id") as transaction:
                scope.cancel()
                await transaction.commit([outgoing(place, b"never")])
        async with broker.transaction(f"{namespace}id") as transaction:
            await transaction.commit([outgoing(place, b"a")])
        async with broker.reader({place: 0}, committed=True) as reader:
            assert values(await read_count(reader, 1)) == [b"a"]

    async def test_a_failed_message_takes_the_others_with_it(self, broker: Broker, namespace: str) -> None:
        small, large = await new_topic(broker, namespace, 2, max_message_bytes="2000")
        with pytest.raises(OutcomeUnknown):
            async with broker.transaction(f"{namespace}id") as transaction:
                await transaction.commit([outgoing(small, b"a"), outgoing(large, b"x" * 5_000)])
        async with broker.transaction(f"{namespace}id") as transaction:
            await transaction.commit([outgoing(small, b"b")])
        async with broker.reader({small: 0, large: 0}, committed=True) as reader:
            assert values(await read_count(reader, 1)) == [b"b"]
            assert await read_to_end(reader, small, large) == []

    async def test_the_younger_transaction_fences_the_older(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.transaction(f"{namespace}id") as older, broker.transaction(f"{namespace}id") as younger:
            with pytest.raises(Superseded):
                await older.commit([outgoing(place, b"old")])
            await younger.commit([outgoing(place, b"new")])
        async with broker.reader({place: 0}, committed=True) as reader:
            assert values(await read_count(reader, 1)) == [b"new"]

    async def test_other_ids_are_not_fenced(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.transaction(f"{namespace}one") as one, broker.transaction(f"{namespace}two") as two:
            await two.commit([outgoing(place, b"two")])
            await one.commit([outgoing(place, b"one")])
        async with broker.reader({place: 0}, committed=True) as reader:
            assert values(await read_count(reader, 2)) == [b"two", b"one"]


class GroupContract:
    """Reading as members."""

    async def test_members_share_all_partitions(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 4)
        async with broker.group_reader(f"{namespace}g", [places[0].topic]) as one:
            assert one.assignment() == frozenset(places)
            before = one.generation()
            async with broker.group_reader(f"{namespace}g", [places[0].topic]) as two:
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 2)
                assert one.assignment() | two.assignment() == frozenset(places)
                assert one.generation() > before
            await eventually(lambda: one.assignment() == frozenset(places))

    async def test_a_member_goes_on_where_the_group_committed(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b", b"c")
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            assert await member.committed(place) is None
            assert values(await read_count(member, 3)) == [b"a", b"b", b"c"]
            assert await member.commit({place: (1, "epoch 7")})
            assert await member.committed(place) == (1, "epoch 7")
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            assert values(await read_count(member, 2)) == [b"b", b"c"]

    async def test_nothing_is_committed_unless_told(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a")
        for _ in range(2):
            async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
                assert values(await read_count(member, 1)) == [b"a"]
        assert await broker.committed(f"{namespace}g", [place]) == {}

    async def test_a_commit_after_losing_the_partition_is_refused(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 2)
        join = partial(broker.group_reader, f"{namespace}g", [places[0].topic])
        async with join() as one, join() as two:
            await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 1)
            (lost,) = two.assignment()
            assert await one.commit({lost: (1, "")}) is False
            assert await two.committed(lost) is None

    async def test_a_living_member_has_a_last_word_when_the_partitions_are_dealt_anew(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 2)
        join = partial(broker.group_reader, f"{namespace}g", [places[0].topic])
        async with join() as one:
            assert await one.commit(dict.fromkeys(places, (0, "at work")))
            one.at_revocation(lambda: dict.fromkeys(places, (1, "let go")))
            async with join() as two:
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 1)
                for member in (one, two):
                    (held,) = member.assignment()
                    assert await member.committed(held) == (1, "let go")
            one.at_revocation(dict)
            await eventually(lambda: one.assignment() == frozenset(places))
        assert await broker.committed(f"{namespace}g", places) == dict.fromkeys(places, (1, "let go"))

    async def test_a_member_that_leaves_or_lost_its_partitions_has_none(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        join = partial(broker.group_reader, f"{namespace}g", [place.topic])
        async with join() as one:
            one.at_revocation(lambda: {place: (7, "of the first")})
        async with join() as two:
            assert await two.committed(place) is None
            assert await two.commit({place: (1, "")})

    async def test_metadata_beyond_the_limit_is_refused_and_changes_nothing(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        full = {place: (1, "ö" * MAX_METADATA)}
        await broker.commit(f"{namespace}outside", full)
        with pytest.raises(BrokerError, match=r"(?i)metadata"):
            await broker.commit(f"{namespace}outside", {place: (2, "x" * (MAX_METADATA + 1))})
        assert await broker.committed(f"{namespace}outside", [place]) == full
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            with pytest.raises(BrokerError, match=r"(?i)metadata"):
                await member.commit({place: (1, "x" * (MAX_METADATA + 1))})
            assert await member.committed(place) is None

    async def test_a_generation_starts_again_at_the_committed_offset(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 2)
        for place in places:
            await write(broker, place, b"a", b"b")
        async with broker.group_reader(f"{namespace}g", [places[0].topic]) as one:
            await read_count(one, 4)
            assert await one.commit(dict.fromkeys(places, (1, "")))
            async with broker.group_reader(f"{namespace}g", [places[0].topic]) as two:
                await eventually(lambda: len(one.assignment()) == len(two.assignment()) == 1)
                assert values(await read_count(one, 1) + await read_count(two, 1)) == [b"b", b"b"]

    async def test_seek_moves_a_held_partition(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b")
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            await read_count(member, 2)
            member.seek(place, 1)
            assert values(await read_count(member, 1)) == [b"b"]

    async def test_a_member_takes_the_first_record_left(self, broker: Broker, namespace: str, truncate: Truncate) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a", b"b", b"c")
        await broker.commit(f"{namespace}g", {place: (1, "")})
        truncate(place, 2)
        async with broker.group_reader(f"{namespace}g", [place.topic]) as member:
            assert values(await read_count(member, 1)) == [b"c"]

    async def test_offsets_without_members_keep_their_metadata(self, broker: Broker, namespace: str) -> None:
        one, two, three = await new_topic(broker, namespace, 3)
        await broker.commit(f"{namespace}g", {one: (0, "x"), two: (7, "größe " * 20)})
        await broker.commit(f"{namespace}g", {one: (3, "")})
        expected = {one: (3, ""), two: (7, "größe " * 20)}
        assert await broker.committed(f"{namespace}g", [one, two, three]) == expected
        assert await broker.committed(f"{namespace}never", [one]) == {}

    async def test_outsiders_do_not_commit_for_members(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        async with broker.group_reader(f"{namespace}g", [place.topic]):
            with pytest.raises(BrokerError):
                await broker.commit(f"{namespace}g", {place: (1, "")})


class LifeContract:
    """Everything handed out closes within a deadline, cancelled or not."""

    async def test_closing_while_cancelled_ends(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        contexts: list[AbstractAsyncContextManager[object]] = [
            broker.reader({place: 0}), broker.group_reader(f"{namespace}g", [place.topic]),
            broker.producer(), broker.transaction(f"{namespace}id"),
        ]

        async def hold(context: AbstractAsyncContextManager[object], *, task_status: TaskStatus[None]) -> None:
            async with context:
                task_status.started()
                await anyio.sleep_forever()

        with anyio.fail_after(CLOSE_DEADLINE_S):
            async with anyio.create_task_group() as tasks:
                for context in contexts:
                    await tasks.start(hold, context)
                tasks.cancel_scope.cancel()

    async def test_a_cancelled_member_leaves_its_group_at_once(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 2)

        async def stay(*, task_status: TaskStatus[None]) -> None:
            async with broker.group_reader(f"{namespace}g", [places[0].topic]):
                task_status.started()
                await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            await tasks.start(stay)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5.0):  # below the session time-out: waiting for that would be the defect
            async with broker.group_reader(f"{namespace}g", [places[0].topic]) as member:
                assert member.assignment() == frozenset(places)

    async def test_a_cancelled_producer_flushes(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        with anyio.CancelScope() as scope:
            async with broker.producer(linger_ms=200) as producer:
                await producer.send(outgoing(place, b"a"))
                scope.cancel()
                await anyio.sleep_forever()
        async with broker.reader({place: 0}) as reader:
            assert values(await read_to_end(reader, place)) == [b"a"]


class TopicContract:
    """Topics themselves."""

    async def test_topics_are_created_described_and_deleted(self, broker: Broker, namespace: str) -> None:
        places = await new_topic(broker, namespace, 3, retention_ms="-1")
        name = places[0].topic
        assert await broker.partitions(name) == 3
        found = await broker.describe_topics([name, f"{namespace}none"])
        assert list(found) == [name]
        assert (found[name].name, found[name].partitions, found[name].config["retention.ms"]) == (name, 3, "-1")
        await broker.delete_topics([name, f"{namespace}none"])
        assert await broker.partitions(name) == 0

    async def test_a_topic_that_exists_is_left_as_it_is(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        await write(broker, place, b"a")
        await broker.create_topics([TopicSpec(place.topic, 5, {}), TopicSpec(f"{namespace}other", 2, {})])
        assert (await broker.partitions(place.topic), await broker.partitions(f"{namespace}other")) == (1, 2)
        assert await broker.ends([place]) == {place: 1}

    async def test_offsets_are_found_by_the_time_of_their_messages(self, broker: Broker, namespace: str) -> None:
        place, empty = await new_topic(broker, namespace, partitions=2)
        await write(broker, place, b"a", b"b", b"c")
        async with broker.reader({place: 0}) as reader:
            first = (await read_count(reader, 3))[0]
        assert await broker.offsets_at([place, empty], first.timestamp_ms) == {place: 0, empty: 0}
        assert await broker.offsets_at([place, empty], first.timestamp_ms + 3_600_000) == {place: 3, empty: 0}

    async def test_ends_of_unknown_partitions_are_an_error(self, broker: Broker, namespace: str) -> None:
        (place,) = await new_topic(broker, namespace)
        with pytest.raises(TopicMismatch):
            await broker.ends([place, Place(place.topic, 3)])


class BrokerContract(LogContract, ProducerContract, TransactionContract, GroupContract, LifeContract, TopicContract):
    """The whole of it."""


class TestMemoryBroker(BrokerContract):
    """The double."""

    @pytest.fixture
    def broker(self) -> MemoryBroker:
        return MemoryBroker()

    @pytest.fixture
    def truncate(self, broker: MemoryBroker) -> Truncate:
        return broker.truncate


class TestKafkaBroker(BrokerContract):
    """The real one."""

    @pytest.fixture
    def broker(self, kafka_bootstrap: str) -> KafkaBroker:
        return KafkaBroker(kafka_bootstrap, client_id="contract", deadline_s=20.0)

    @pytest.fixture
    def truncate(self, kafka_bootstrap: str) -> Truncate:
        def delete_before(place: Place, offset: int) -> None:
            admin = AdminClient({"bootstrap.servers": kafka_bootstrap})
            for answer in admin.delete_records([TopicPartition(*place, offset)]).values():
                answer.result()

        return delete_before
