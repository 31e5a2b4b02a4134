"""The log that the trajectory benchmark reads: ended sessions in groups, and the Tasks that the groups belong to. Written in bulk.

A partition holds one Claim, then group after group: the Opens of its members, their Requests, their Spans, their Closes, as members that
run side by side leave them. So every offset is known before anything is written.

Invariant: a partition must be empty before: an offset that is not the foreseen one is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.arrays import pack_f4, pack_i4
from schemas.errors import TopicMismatch
from schemas.record import Record
from schemas.session import Claim, Close, Open, Request, Sampling
from schemas.span import Span
from schemas.task import Task
from schemas.topics import SESSIONS, TASKS
from streams.cas import open_cas
from streams.log import Log, RecordWriter
from streams.writer import Receipt, WriterOptions

PROMPT_TOKENS = 16
SAMPLED_TOKENS = 48
MEMBERS = 8
TASKS_PER_COMMIT = 4_000
BULK = WriterOptions(compress=True)

_PROMPT = pack_i4(range(PROMPT_TOKENS))
_LOGPROBS = pack_f4([-1.0] * SAMPLED_TOKENS)


@dataclass(frozen=True, slots=True)
class Prefill:
    """How much is written: group g lies in partition g modulo `partitions`."""

    groups: int
    partitions: int

    @property
    def sessions(self) -> int:
        """How many there are in all."""
        return self.groups * MEMBERS

    def records(self, partition: int) -> Iterator[Record]:
        """The records of a partition of `sessions`, from offset 0 on."""
        yield Claim(epoch=0, node="bench", incarnation="bench")
        for place, group in enumerate(range(partition, self.groups, self.partitions)):
            yield from _group(group, 1 + place * 4 * MEMBERS)

    def tasks(self) -> Iterator[Task]:
        """The Tasks of all groups."""
        for number in range(self.sessions):
            yield Task(number=number, group=number // MEMBERS, member=number % MEMBERS, members=MEMBERS)


async def prefill(log: Log, shape: Prefill) -> None:
    """Write all of it.

    :raises TopicMismatch: a partition was not empty.
    """
    partitions = [place.partition for place in await log.places(TASKS)]
    tasks: list[tuple[int, Record]] = [(partitions[task.group % len(partitions)], task) for task in shape.tasks()]
    async with open_cas(log, TASKS) as cas:
        for begin in range(0, len(tasks), TASKS_PER_COMMIT):
            await cas.write(tasks[begin : begin + TASKS_PER_COMMIT])
    async with log.writer(BULK) as writer:
        firsts = [await _write(writer, shape, partition) for partition in range(shape.partitions)]
    for partition, first in enumerate(firsts):
        if await first != 0:
            raise TopicMismatch(f"sessions/{partition} was not empty: use a namespace of its own")


async def _write(writer: RecordWriter, shape: Prefill, partition: int) -> Receipt:
    """Write one partition; answers the receipt of its first record."""
    receipts = [await writer.send(SESSIONS, partition, record) for record in shape.records(partition)]
    return receipts[0]


def _group(group: int, begin: int) -> Iterator[Record]:
    """The sessions of a group whose first Open stands at `begin`."""
    members = range(MEMBERS)
    for member in members:
        yield Open(nonce=_nonce(begin + member), check="bench0", group=group, member=member)
    for member in members:
        sampling = Sampling(max_tokens=SAMPLED_TOKENS)
        yield Request(session=begin + member, nonce=_nonce(begin + MEMBERS + member), tokens=_PROMPT, sampling=sampling)
    for member in members:
        yield _span(begin + member, begin + MEMBERS + member, member)
    for member in members:
        yield Close(session=begin + member)


def _span(session: int, request: int, member: int) -> Span:
    """The whole answer; its last token is the member's number, for the rule to read."""
    tokens = pack_i4([*range(SAMPLED_TOKENS - 1), member])
    return Span(
        session=session, request=request, epoch=0, start=0, tokens=tokens, logprobs=_LOGPROBS, version=0, kv_version=0, finish="length"
    )


def _nonce(offset: int) -> bytes:
    return offset.to_bytes(12, "little")
