"""Error codes, each injected twice into an API of librdkafka's mock broker: what passes by itself is not noticed, what does not is said.

A code that a client can outlive costs time alone; one that it cannot ends in an error of ours, and never in a gap or a double.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio

from schemas.errors import BrokerError, BrokerUnavailable, OutcomeUnknown
from schemas.grant import Grant
from schemas.topics import GRANTS
from streams.broker import Broker, Outgoing, Place
from streams.cas import open_cas
from streams.log import Log
from streams.writer import open_writer
from tests.chaos.mock import Api, MockCluster, MockedBroker, open_mock
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage

TIER = "mock broker"
DEADLINE_S = 60.0
MESSAGES = 20
WRITES = 3
TOPIC, GROUP, NAMESPACE = "t", "g", "n."
PLACE = Place(TOPIC, 0)
TWICE = 2

PRODUCE_PASSES = (3, 5, 6, 7, 19, 20, 56)
"""Leader moves, time-outs, too few replicas in sync, a disk that fails: the client sends the same batch again."""
PRODUCE_STANDS = (46,)
"""A repeated sequence number: the broker says that it has the batch, but not where. Here it lies, and the batch is sent again."""
PRODUCE_BREAKS = (2, 10, 13, 17, 29, 45, 47, 59, 87, 90, -1)
"""Corrupt, too large, forbidden, out of order, fenced, …: the producer is broken, and another one sends all again."""
FETCH_PASSES = (1, 2, 3, 5, 6, 7, 9, 13, 56, 74, 75, 76, 78, 100, -1)
FETCH_REFUSED = (29,)
CAS_PASSES = {
    Api.FIND_COORDINATOR: (14, 15, 16),
    Api.INIT_PRODUCER_ID: (7, 14, 15, 16, 51),
    Api.ADD_PARTITIONS_TO_TXN: (3, 14, 15, 16, 29, 47, 48, 51, 53, 90, -1),
    Api.END_TXN: (7, 13, 14, 15, 16, 42, 47, 48, 49, 51, 53, 90, -1),
}
"""Once a transaction has begun, every failure is an unknown outcome: the write is run again, and finds what stands."""
CAS_REFUSED = {Api.FIND_COORDINATOR: (30, 53), Api.INIT_PRODUCER_ID: (31, 42, 53, -1)}
COMMIT_PASSES = (7, 14, 15, 16)
COMMIT_REFUSED = (12, 28, 30)
LOST_MEMBERSHIP = (22, 25, 27)
"""A member hears that it holds nothing any more; an outsider, that the group has members."""

Play = Callable[[MockCluster, Broker], Awaitable[list[object]]]


async def injected(api: Api, code: int, play: Play) -> list[object]:
    """What a scenario answers on a cluster of its own, whose next requests of one API fail with a code."""
    with open_mock() as mock, anyio.fail_after(DEADLINE_S):
        mock.create_topic(TOPIC)
        mock.create_topic(NAMESPACE + GRANTS.name)
        found = await play(mock, MockedBroker(mock.bootstrap))
        assert mock.answered(api) >= 1, f"{api.name} was never asked"
        return found


async def passes(api: Api, codes: Sequence[int], play: Callable[[int], Play], expected: Sequence[object]) -> None:
    """Under each code a scenario answers as without it. All codes at once: most of the time is pauses before another try.

    :raises AssertionError: it does not: something is missing, stands twice, or out of order.
    """

    async def one(code: int) -> None:
        found = await injected(api, code, play(code))
        assert found == list(expected), f"{api.name} answered {code}: {found}"

    async with anyio.create_task_group() as tasks:
        for code in codes:
            tasks.start_soon(one, code)


async def refused(api: Api, codes: Sequence[int], play: Callable[[int], Play]) -> None:
    """Under each code a scenario ends with an error that is said, not with one that is waited out."""
    for code in codes:
        try:
            found = await injected(api, code, play(code))
        except (BrokerUnavailable, OutcomeUnknown) as error:
            raise AssertionError(f"{api.name} answered {code}, and it was waited out: {error!r}") from error
        except BrokerError:
            continue
        raise AssertionError(f"{api.name} answered {code}, and nobody said so: {found}")


def said(api: Api, *codes: Sequence[int]) -> Happened:
    """The proof: every scenario ran to its end, and its API was asked. Each compared all that stands with all that was written."""
    return Happened(f"{api.name} answered {', '.join(str(code) for group in codes for code in group)}", lost=0, twice=0)


VALUES: list[object] = [b"%d" % number for number in range(MESSAGES)]


async def written(broker: Broker) -> list[object]:
    """All that stands in the topic."""
    found: list[object] = []
    async with broker.reader({PLACE: 0}) as reader:
        while reader.position(PLACE) < await reader.end(PLACE):
            found += [message.value for message in await reader.read(timeout_s=1.0)]
    return found


def writing(code: int) -> Play:
    """A writer sends; in its middle the code comes."""

    async def play(mock: MockCluster, broker: Broker) -> list[object]:
        async with open_writer(broker) as writer:
            for number in range(MESSAGES):
                if number == MESSAGES // 2:
                    await writer.flush()
                    mock.answer(Api.PRODUCE, [code] * TWICE)
                await writer.send(Outgoing(TOPIC, 0, b"k", b"%d" % number))
            await writer.flush()
        return await written(broker)

    return play


def producing(code: int) -> Play:
    """A producer without a writer is broken by the code: what follows does not land."""

    async def play(mock: MockCluster, broker: Broker) -> list[object]:
        async with broker.producer() as producer:
            await (await producer.send(Outgoing(TOPIC, 0, b"k", b"before")))
            mock.answer(Api.PRODUCE, [code])
            failing = await producer.send(Outgoing(TOPIC, 0, b"k", b"failing"))
            for send in (failing, producer.send(Outgoing(TOPIC, 0, b"k", b"behind"))):
                try:
                    await send
                except OutcomeUnknown:
                    continue
                raise AssertionError(f"a send succeeded after {code}")
        return await written(broker)

    return play


def reading(code: int, *, member: bool = False) -> Play:
    """A reader from the beginning, alone or as a member of a group."""

    async def play(mock: MockCluster, broker: Broker) -> list[object]:
        async with broker.producer() as producer:
            for answer in [await producer.send(Outgoing(TOPIC, 0, b"k", b"%d" % number)) for number in range(MESSAGES)]:
                await answer
        mock.answer(Api.FETCH, [code] * TWICE)
        found: list[object] = []
        async with broker.group_reader(GROUP, [TOPIC]) if member else broker.reader({PLACE: 0}) as reader:
            while len(found) < MESSAGES:
                found += [message.value for message in await reader.read(timeout_s=1.0)]
        return found

    return play


def committing(api: Api) -> Callable[[int], Play]:
    """Compare-and-set writes, the code before each: what stands afterwards, by number."""

    def of(code: int) -> Play:
        async def play(mock: MockCluster, broker: Broker) -> list[object]:
            log = Log(broker, NAMESPACE, "codes")
            async with open_cas(log, GRANTS) as cas:
                for number in range(WRITES):
                    mock.answer(api, [code] * TWICE)
                    await cas.write([(0, Grant(partition=number))])
            async with log.follow_all(GRANTS) as reader:
                return [entry.record.partition for entry in await reader.read_to_end([0]) if isinstance(entry.record, Grant)]

        return play

    return of


def keeping(api: Api, *, member: bool) -> Callable[[int], Play]:
    """Commit an offset with its metadata, and ask for it: by a member of the group, which says whether it could, or from outside."""

    def of(code: int) -> Play:
        async def outside(mock: MockCluster, broker: Broker) -> list[object]:
            mock.answer(api, [code] * TWICE)
            await broker.commit(GROUP, {PLACE: (5, "m")})
            return [(await broker.committed(GROUP, [PLACE])).get(PLACE)]

        async def inside(mock: MockCluster, broker: Broker) -> list[object]:
            async with broker.group_reader(GROUP, [TOPIC]) as reader:
                mock.answer(api, [code] * TWICE)
                could = await reader.commit({PLACE: (5, "m")})
            return [could, (await broker.committed(GROUP, [PLACE])).get(PLACE)]

        return inside if member else outside

    return of


@row("error codes of Produce", tier=TIER, scene="bare")
async def produce(stage: Stage) -> Happened:
    """Each message stands once, in order, whether its producer could send it again or broke."""
    await passes(Api.PRODUCE, [*PRODUCE_PASSES, *PRODUCE_STANDS, *PRODUCE_BREAKS], writing, VALUES)
    await passes(Api.PRODUCE, PRODUCE_BREAKS, producing, [b"before"])
    return said(Api.PRODUCE, PRODUCE_PASSES, PRODUCE_STANDS, PRODUCE_BREAKS)


@row("error codes of Fetch", tier=TIER, scene="bare")
async def fetch(stage: Stage) -> Happened:
    """Each message is read once, in order, by readers of the log and by members of a group."""
    await passes(Api.FETCH, FETCH_PASSES, reading, VALUES)
    await passes(Api.FETCH, (3, 6, -1), lambda code: reading(code, member=True), VALUES)
    await refused(Api.FETCH, FETCH_REFUSED, reading)
    return said(Api.FETCH, FETCH_PASSES, FETCH_REFUSED)


@row("error codes of InitProducerId", tier=TIER, scene="bare")
async def init_producer_id(stage: Stage) -> Happened:
    """And of what comes before it and behind it: the coordinator's address, the partitions of a transaction."""
    for api in (Api.FIND_COORDINATOR, Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS_TO_TXN):
        await passes(api, CAS_PASSES[api], committing(api), range(WRITES))
        await refused(api, CAS_REFUSED.get(api, ()), committing(api))
    return said(Api.INIT_PRODUCER_ID, CAS_PASSES[Api.INIT_PRODUCER_ID], CAS_REFUSED[Api.INIT_PRODUCER_ID])


@row("error codes of EndTxn", tier=TIER, scene="bare")
async def end_txn(stage: Stage) -> Happened:
    """Committed or not, nobody knows: the next try looks, and no write stands twice."""
    await passes(Api.END_TXN, CAS_PASSES[Api.END_TXN], committing(Api.END_TXN), range(WRITES))
    return said(Api.END_TXN, CAS_PASSES[Api.END_TXN])


@row("error codes of OffsetCommit", tier=TIER, scene="bare")
async def offset_commit(stage: Stage) -> Happened:
    """And of OffsetFetch. A member that lost its place is told so; nobody else is."""
    kept, api = (5, "m"), Api.OFFSET_COMMIT
    await passes(api, COMMIT_PASSES, keeping(api, member=False), [kept])
    await passes(api, COMMIT_PASSES[:1], keeping(api, member=True), [True, kept])
    await passes(api, LOST_MEMBERSHIP[:1], keeping(api, member=True), [False, None])
    await refused(api, [*COMMIT_REFUSED, *LOST_MEMBERSHIP], keeping(api, member=False))
    await passes(Api.OFFSET_FETCH, COMMIT_PASSES, keeping(Api.OFFSET_FETCH, member=False), [kept])
    await refused(Api.OFFSET_FETCH, (30, -1), keeping(Api.OFFSET_FETCH, member=False))
    return said(api, COMMIT_PASSES, LOST_MEMBERSHIP, COMMIT_REFUSED)
