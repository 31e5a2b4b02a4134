"""Benchmark of a takeover: a new owner begins a partition that is full of closed sessions behind a few long open ones, from its Position
and from a snapshot, in turns.

Timed is what `workers.rollout.owner` does until it may generate: ask where to start, fold from there, write the Claim and read it back. The
snapshot is as old as its cadence allows it to be, so that the rest is the longest that a new owner reads.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median

import anyio

from infra.bench.measure import Timing, rotated, stopwatch
from infra.bench.stage import Tell, fresh_namespace, log_of, run
from schemas.arrays import pack_f4, pack_i4
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Claim, Close, Open, Request, Sampling
from schemas.settings import Connection
from schemas.span import Span
from schemas.topics import SESSIONS
from streams.codec import Entry
from streams.log import Log
from streams.writer import WriterOptions
from workers.ledger import Ledger
from workers.positions import ROLLOUT_GROUP, commit_positions, find_starts
from workers.snapshot import Backlog, Snapshot, snapshot_of
from workers.snapshot_store import SnapshotStore

ROUNDS = 3
SPAN_TOKENS, SPANS = 32, 8
"""Of a closed session; 11 records."""
LONG_TOKENS = 2_000
"""Accepted tokens of an open session."""
CADENCE_BYTES = 4 << 20
OWN_S = 120.0
"""How long a fold may take until the own Claim was read back."""

_PROMPT, _TOKENS, _LOGPROBS = pack_i4(range(64)), pack_i4(range(SPAN_TOKENS)), pack_f4([-1.0] * SPAN_TOKENS)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the partition holds: `open_sessions` at its beginning, then `closed_bytes` of closed ones."""

    closed_bytes: int = 32 << 20
    open_sessions: int = 64
    cadence_bytes: int = CADENCE_BYTES

    def records(self) -> Iterator[Record]:
        """The records from offset 0 on."""
        yield Claim(epoch=0, node="bench", incarnation="bench")
        offset = 1
        for _ in range(self.open_sessions):
            yield from _opening(offset)
            long = pack_i4(range(LONG_TOKENS))
            yield _span(offset, 0, long, pack_f4([-1.0] * LONG_TOKENS))
            offset += 3
        session_bytes = (SPANS + 3) * 64 + len(_PROMPT) + SPANS * 2 * len(_TOKENS)
        for _ in range(self.closed_bytes // session_bytes):
            yield from _opening(offset)
            yield from (_span(offset, number * SPAN_TOKENS, _TOKENS, _LOGPROBS) for number in range(SPANS))
            yield Close(session=offset)
            offset += SPANS + 3


@dataclass(slots=True)
class Takeovers:
    """Until the own Claim was read back, from the Position and from a snapshot, round by round; and how many records each folded."""

    shape: Shape
    records: dict[str, int] = field(default_factory=dict)
    timings: dict[str, list[Timing]] = field(default_factory=lambda: {"position": [], "snapshot": []})

    def seconds(self, way: str) -> float:
        """The median of one way."""
        return median(timing.wall_s for timing in self.timings[way])


def measure_takeover(connection: Connection, tell: Tell, *, quick: bool) -> Takeovers:
    """Write the partition once, and take it over both ways, in turns."""
    shape = Shape(1 << 18, 4, 1 << 16) if quick else Shape()
    with fresh_namespace(connection, 1) as fresh, tempfile.TemporaryDirectory(prefix="snapshots-") as folder:
        return run(partial(_measure, log_of(fresh), folder, Takeovers(shape), 1 if quick else ROUNDS, tell))


async def _measure(log: Log, folder: str, found: Takeovers, rounds: int, tell: Tell) -> Takeovers:
    store = SnapshotStore(log, folder, ROLLOUT_GROUP)
    await store.keep(await _fill(log, found.shape))
    await commit_positions(log, {0: Position(1, 0)})
    for number in range(rounds):
        for way, used in rotated([("position", None), ("snapshot", store)], number):
            with stopwatch() as timing:
                found.records[way] = await _take(log, used, epoch=1 + sum(map(len, found.timings.values())))
            found.timings[way].append(timing)
        by_position, by_snapshot = found.seconds("position"), found.seconds("snapshot")
        tell(f"takeover: round {number + 1}, {by_position:.2f} s from the Position, {by_snapshot:.2f} s by a snapshot")
    return found


async def _fill(log: Log, shape: Shape) -> Snapshot:
    """Write the records; answers the snapshot that an owner would have kept last."""
    ledger, backlog, found = Ledger(), Backlog(), None
    async with log.writer(WriterOptions(compress=True)) as writer:
        for record in shape.records():
            await writer.send(SESSIONS, 0, record)
            backlog.saw(ledger.next, record)
            ledger.apply(ledger.next, record)
            if isinstance(record, Close):
                ledger.forget(ledger.sessions[record.session])
                if backlog.is_due(ledger, shape.cadence_bytes):
                    found = snapshot_of(ledger, log.name(SESSIONS), 0)
                    backlog.taken()
        await writer.flush()
    return found or snapshot_of(ledger, log.name(SESSIONS), 0)


async def _take(log: Log, store: SnapshotStore | None, epoch: int) -> int:
    """As an owner; answers how many records it folded."""
    start = (await find_starts(log, [0], {}, store=store))[0]
    ledger, count = start.ledger(), 0
    async with log.writer() as writer, log.follow(SESSIONS, {0: start.position.offset}) as reader:
        await writer.send(SESSIONS, 0, Claim(epoch=epoch, node="bench", incarnation=str(epoch)))
        with anyio.fail_after(OWN_S):
            while ledger.epoch != epoch:
                count += _fold(ledger, await reader.read(timeout_s=1.0))
    return count


def _fold(ledger: Ledger, entries: Sequence[Entry[Record]]) -> int:
    for entry in entries:
        ledger.apply(entry.offset, entry.record)
    return len(entries)


def _opening(session: int) -> Iterator[Record]:
    nonce = session.to_bytes(8, "big")
    yield Open(nonce=nonce, check="abcdef")
    yield Request(session=session, nonce=nonce, tokens=_PROMPT, sampling=Sampling(max_tokens=1 << 16))


def _span(session: int, start: int, tokens: bytes, logprobs: bytes) -> Span:
    return Span(
        session=session, request=session + 1, epoch=0, start=start, tokens=tokens, logprobs=logprobs, version=0, kv_version=0
    )
