"""The owner's order of spans, where several tasks cut them and the writer makes them wait."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import anyio
import pytest

from schemas.record import Record
from schemas.span import Span
from schemas.topics import Topic
from streams.log import Log, LogReader, RecordWriter
from streams.memory import MemoryBroker
from workers.ledger import Ledger
from workers.rollout.engines.base import Emission, Engine, JobId
from workers.rollout.holdings import Holding
from workers.rollout.owner import Owner
from workers.rollout.spans import SpanBuffers

pytestmark = pytest.mark.anyio

JOBS = [JobId(0, number, 1) for number in range(4)]


class SlowWriter:
    """Lets other tasks run before each record, now more, now less."""

    def __init__(self, seed: int = 0) -> None:
        self.sent: list[Span] = []
        self.flushed: list[int] = []
        self._random = Random(seed)

    async def flush(self) -> None:
        """Notes how much was sent by then."""
        self.flushed.append(len(self.sent))

    async def send(self, topic: Topic, partition: int, record: Record) -> None:
        for _ in range(self._random.randint(1, 9)):
            await anyio.lowlevel.checkpoint()
        assert isinstance(record, Span)
        self.sent.append(record)


class Unread:
    """A reader of partitions that hold nothing."""

    def remove(self, partition: int) -> None:
        """Nothing was read."""


def owner(writer: SlowWriter, buffers: SpanBuffers, reader: Unread | None = None) -> Owner:
    log = Log(MemoryBroker(), "test.", "test")
    return Owner(log, "n", "i", cast("Engine", None), cast("RecordWriter", writer), cast("LogReader", reader), buffers)


def emit(start: int, finish: Any = None) -> list[Emission]:
    return [Emission(job, [start, start + 1], [-0.5, -0.5], 0, 0, finish) for job in JOBS]


@pytest.mark.parametrize("seed", range(5))
async def test_r2_spans_of_a_request_leave_in_order_whichever_task_cuts_them(seed: int) -> None:
    print("seed", seed)
    writer, buffers = SlowWriter(seed), SpanBuffers(stream_tokens=2, flush_s=0.0)
    made = owner(writer, buffers)
    for number, job in enumerate(JOBS):
        buffers.open(job, session=9, start=0, stream=number % 2 == 0, now=0.0)
    async with anyio.create_task_group() as tasks:
        for step in range(5):
            tasks.start_soon(made.absorb, emit(step * 2, "stop" if step == 4 else None), float(step))
            tasks.start_soon(lambda step=step: made.write(buffers.due(step + 0.5)))
    for job in JOBS:
        spans = [span for span in writer.sent if span.request == job.request]
        assert [span.start for span in spans] == sorted(span.start for span in spans)
        ends = [0, *(span.start + span.count for span in spans)]
        assert [span.start for span in spans] == ends[:-1]
        assert ends[-1] == 10


async def test_r2_a_cancelled_write_leaves_no_gap() -> None:
    writer, buffers = SlowWriter(), SpanBuffers(stream_tokens=1, flush_s=0.0)
    made = owner(writer, buffers)
    buffers.open(JOBS[0], session=9, start=0, stream=True, now=0.0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.absorb, emit(0)[:1], 0.0)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await made.absorb(emit(2, "stop")[:1], 1.0)
    assert [span.start for span in writer.sent] == [0, 2]


async def test_r2_a_partition_is_given_up_only_when_what_was_sampled_stands_in_the_log() -> None:
    writer, buffers = SlowWriter(), SpanBuffers(stream_tokens=8, flush_s=9.0)
    made = owner(writer, buffers, reader=Unread())
    made.holdings[0] = Holding(0, 1, Ledger())
    buffers.open(JOBS[0], session=9, start=0, stream=False, now=0.0)
    await made.absorb(emit(0)[:1], 0.0)
    assert writer.sent == []
    await made.release([0])
    assert ([span.count for span in writer.sent], writer.flushed, made.holdings) == ([2], [1], {})
