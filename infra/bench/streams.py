"""Benchmark of writer and reader: `streams` against aiokafka alone, the same bytes through the same broker, in turns.

One partition; writers wait for the acknowledgements of each thousand messages. What a ratio below 1 costs buys resends, deadlines and
bounded memory.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from infra.bench.measure import Timing, ratio, rotated, stopwatch
from infra.bench.raw import open_raw_reader, open_raw_writer
from infra.bench.stage import Tell
from streams.broker import Broker, Outgoing, Place, TopicSpec
from streams.kafka import KafkaBroker
from streams.kafka.client import Connection
from streams.writer import open_writer

ROUNDS = 5
PER_WAIT = 1000
KEY = b"0"
DEADLINE_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """What is written and read: `messages` of `value_bytes` each. `name` is its suffix in the report."""

    name: str
    value_bytes: int
    messages: int


LOADS = (Load("1k", 1 << 10, 30_000), Load("8k", 8 << 10, 8_000))
QUICK_LOADS = (Load("1k", 1 << 10, 1_000), Load("8k", 8 << 10, 1_000))


@dataclass(slots=True)
class Duel:
    """The timings of both sides, round by round."""

    messages: int
    raw: list[Timing] = field(default_factory=list)
    ours: list[Timing] = field(default_factory=list)

    def ratio(self) -> float:
        """Raw wall time over ours."""
        return ratio(self.raw, self.ours, lambda timing: timing.wall_s)

    def cpu_ratio(self) -> float:
        """Raw CPU time over ours: what a busy machine distorts least."""
        return ratio(self.raw, self.ours, lambda timing: timing.cpu_s)


async def measure_streams(bootstrap: str, tell: Tell, *, quick: bool) -> dict[str, Duel]:
    """Duels by name: `write_1k`, `write_8k`, `read_1k`, `read_8k`."""
    bench = _StreamBench(Connection(bootstrap, "bench", DEADLINE_S), KafkaBroker(bootstrap, client_id="bench", deadline_s=DEADLINE_S))
    duels: dict[str, Duel] = {}
    for load in QUICK_LOADS if quick else LOADS:
        writing, reading = Duel(load.messages), Duel(load.messages)
        for number in range(1 if quick else ROUNDS):
            await bench.round(load, number, writing, reading)
            tell(f"streams {load.name}: round {number + 1}, write {writing.ratio():.2f}, read {reading.ratio():.2f} of raw aiokafka")
        duels |= {f"write_{load.name}": writing, f"read_{load.name}": reading}
    return duels


@dataclass(frozen=True, slots=True)
class _StreamBench:
    connection: Connection
    broker: KafkaBroker

    async def round(self, load: Load, number: int, writing: Duel, reading: Duel) -> None:
        """Both sides write, each a topic of its own; then both read one of them."""
        value = secrets.token_bytes(load.value_bytes)
        async with _topic(self.broker) as first, _topic(self.broker) as second:
            for write, place, timings in rotated(((self._write_raw, first, writing.raw), (self._write, second, writing.ours)), number):
                timings.append(await write(place, value, load.messages))
            for read, timings in rotated(((self._read_raw, reading.raw), (self._read, reading.ours)), number):
                timings.append(await read(first, load.messages))

    async def _write_raw(self, place: Place, value: bytes, count: int) -> Timing:
        async with open_raw_writer(self.connection) as writer:
            with stopwatch() as timing:
                for begun in range(0, count, PER_WAIT):
                    await writer.write(place, KEY, [value] * min(PER_WAIT, count - begun))
        return timing

    async def _write(self, place: Place, value: bytes, count: int) -> Timing:
        async with open_writer(self.broker) as writer:
            with stopwatch() as timing:
                for begun in range(0, count, PER_WAIT):
                    messages = range(min(PER_WAIT, count - begun))
                    sent = [await writer.send(Outgoing(place.topic, place.partition, KEY, value)) for _ in messages]
                    for each in sent:
                        await each
        return timing

    async def _read_raw(self, place: Place, count: int) -> Timing:
        async with open_raw_reader(self.connection, place) as reader:
            with stopwatch() as timing:
                await reader.read(count)
        return timing

    async def _read(self, place: Place, count: int) -> Timing:
        async with self.broker.reader({place: 0}) as reader:
            with stopwatch() as timing:
                while count > 0:
                    count -= len(await reader.read(timeout_s=1.0))
        return timing


@asynccontextmanager
async def _topic(broker: Broker) -> AsyncIterator[Place]:
    """A topic of one partition, gone afterwards."""
    name = f"bench.{secrets.token_hex(4)}"
    await broker.create_topics([TopicSpec(name, 1, {})])
    try:
        yield Place(name, 0)
    finally:
        await broker.delete_topics([name])
