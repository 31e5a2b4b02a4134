"""The ledger and the audit's own reading of the same rules agree on every partition: tokens, counted spans, ends, sessions."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from infra.audit.entry import read_entry
from infra.audit.findings import Findings
from infra.audit.grants import Grants
from infra.audit.sessions import PartitionRead
from schemas.arrays import pack_f4, pack_i4
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request, Sampling
from schemas.span import Span
from streams.broker import Message
from streams.codec import encode
from workers.ledger import Ledger, RequestState, SessionState

Log = list[tuple[int, Record]]
SEEDS = range(20)
LOGS_PER_SEED = 20
LIKELY = ["span"] * 8 + ["request"] * 4 + ["again", "claim", "open", "close"] * 2 + ["cancel"]


def random_log(draw: Random) -> Log:
    """Records as owners, gateways, zombies and resends write them, and some that none of them would."""
    ledger, log, offset = Ledger(), Log(), draw.choice([0, 7])
    for _ in range(draw.randint(5, 40)):
        record = _record(draw, ledger, log, offset)
        ledger.apply(offset, record)
        log.append((offset, record))
        offset += draw.choice([1, 1, 1, 2])
    return log


def _record(draw: Random, ledger: Ledger, log: Log, offset: int) -> Record:
    kind, sessions = draw.choice(LIKELY), list(ledger.sessions.values())
    requests = [request for session in sessions for request in session.requests.values()]
    if kind == "again" and log:
        return draw.choice(log)[1]
    if kind == "claim":
        reset = draw.random() < 0.1
        return Claim(epoch=max(-1, ledger.epoch + draw.choice([-1, 0, 1, 1, 2])), node="n", incarnation=str(draw.randrange(3)), reset=reset)
    if kind == "open" or not sessions:
        return Open(nonce=draw.randbytes(12), check="abcdef")
    session = draw.choice(sessions)
    if kind == "close":
        idle = draw.random() < 0.6
        seen = session.last + draw.choice([-1, 0, 0, 1]) if idle else -1
        return Close(session=_near(draw, session.offset, offset), nonce=b"" if idle else draw.randbytes(12), idle=idle, seen=seen)
    if kind == "request" or not requests:
        return _request(draw, session, offset)
    request = draw.choice(requests)
    if kind == "cancel":
        return Cancel(session=request.record.session, request=_near(draw, request.offset, offset))
    return _span(draw, ledger.epoch, request, offset)


def _near(draw: Random, place: int, offset: int) -> int:
    return place if draw.random() < 0.97 else draw.randrange(offset + 3)


def _request(draw: Random, session: SessionState, offset: int) -> Request:
    base, base_length = None, 0
    if session.requests and draw.random() < 0.7:
        state = draw.choice(list(session.requests.values()))
        base = _near(draw, state.offset, offset)
        base_length = draw.choice([state.length, state.prompt_length, draw.randint(0, state.length + 2)])
    return Request(
        session=_near(draw, session.offset, offset), nonce=draw.randbytes(12), tokens=pack_i4(_tokens(draw, 0)), base=base,
        base_length=base_length, sampling=Sampling(max_tokens=draw.randint(1, 6)),
    )  # fmt: skip


def _span(draw: Random, epoch: int, request: RequestState, offset: int) -> Span:
    """Mostly the next one; now and then a repeated one, one that repeats something else, one with a gap, one of another epoch."""
    start, tokens, how = request.accepted, _tokens(draw, 1), draw.random()
    if request.parts and how < 0.2:
        part = draw.choice(request.parts)
        start, tokens = part.start, request.token_ids()[part.start : part.start + part.size]
        tokens = draw.choice([tokens, tokens, tokens[:-1], [*tokens, 1], [50, *tokens[1:]]])
    elif how < 0.27:
        start = max(0, start + draw.choice([-2, -1, 1]))
    finish: Any = draw.choice([None, None, None, "stop", "length", "failed"]) if tokens else "stop"
    return Span(
        session=request.record.session, request=_near(draw, request.offset, offset), epoch=max(-1, epoch + draw.choice([0] * 8 + [-1, 1])),
        start=start, tokens=pack_i4(tokens), logprobs=pack_f4([-0.5] * len(tokens)), version=draw.randrange(3), kv_version=0, finish=finish,
    )  # fmt: skip


def _tokens(draw: Random, fewest: int) -> list[int]:
    return [draw.randrange(9) for _ in range(draw.randint(fewest, 3))]


def as_the_ledger_counts(log: Log) -> dict[int, Any]:
    """Session → how it ended, and of each request tokens, logprobs, end and counted spans."""
    ledger = Ledger()
    for offset, record in log:
        ledger.apply(offset, record)
    return {-1: ledger.epoch} | {
        session.offset: (session.ended_at, session.close is not None, {
            request.offset: (
                bytes(request.tokens), bytes(request.logprobs), request.end and request.end.why,
                [(part.start, part.size, part.version) for part in request.parts],
            ) for request in session.requests.values()
        }) for session in ledger.sessions.values()
    }  # fmt: skip


def as_the_audit_reads(log: Log) -> dict[int, Any]:
    """The same, from the bytes."""
    partition = PartitionRead(0, Grants({}, 1 << 40), Findings())
    for offset, record in log:
        sent = encode("sessions", 0, record)
        partition.apply(read_entry(Message("sessions", 0, offset, 0, sent.key, sent.value, sent.headers), "sessions"))
    return {-1: partition.epoch} | {
        session.entry.offset: (session.closed and session.closed.offset, session.closed is not None and not session.ended_by_reset, {
            request.offset: (
                bytes(request.tokens), bytes(request.logprobs), request.end,
                [(span.first_token, span.length, span.version) for span in request.spans],
            ) for request in session.requests.values()
        }) for session in partition.sessions.values()
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_ledger_and_audit_agree_on_random_logs(seed: int) -> None:
    draw = Random(seed)
    for _ in range(LOGS_PER_SEED):
        log = random_log(draw)
        assert as_the_audit_reads(log) == as_the_ledger_counts(log), "\n".join(map(str, log))
