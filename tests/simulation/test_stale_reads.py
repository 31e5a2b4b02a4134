"""A process that is served by a replica that lags sees the log as it was, whichever way it reads, and loses nothing of it."""

from __future__ import annotations

import random

from schemas.node import Tick
from schemas.topics import NODES
from streams.broker import Message, Place
from streams.codec import encode
from streams.topics import ensure_topics
from tests.simulation.cluster import Cluster
from tests.simulation.connection import Connection
from tests.simulation.virtual_loop import run_virtually

PLACE = Place("sim." + NODES.name, 0)


class Nobody:
    """The process of the connection."""

    def kill(self) -> None:
        """It is not killed."""

    def freeze(self) -> None:
        """Nor frozen."""

    def thaw(self) -> None:
        """So it does not thaw."""

    def struck(self, kind: str) -> None:
        """Nothing strikes."""


def tick(cluster: Cluster, number: int) -> None:
    cluster.append(encode(PLACE.topic, 0, Tick(scheduler="s", number=number)))


def offsets(messages: list[Message]) -> list[int]:
    return [message.offset for message in messages]


def test_a_reader_and_a_member_see_nothing_new_until_the_lag_is_over() -> None:
    async def main() -> None:
        cluster = Cluster()
        await ensure_topics(cluster, "sim.", 2)
        connection = Connection(cluster, random.Random(0), Nobody())
        for number in (1, 2):
            tick(cluster, number)
        connection.see_no_further(3.0)
        tick(cluster, 3)
        async with connection.reader({PLACE: 1}) as reader, connection.group_reader("sim.g", [PLACE.topic]) as member:
            assert offsets(await reader.read(timeout_s=0.5)) == [1]
            assert offsets(await member.read(timeout_s=0.5)) == [0, 1]
            assert await reader.read(timeout_s=0.5) == await member.read(timeout_s=0.5) == []
            assert reader.position(PLACE) == 2
            assert offsets(await reader.read(timeout_s=5.0)) == [2]
            assert offsets(await member.read(timeout_s=5.0)) == [2]

    run_virtually(main)
