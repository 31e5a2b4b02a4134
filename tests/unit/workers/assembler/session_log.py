"""Records of sessions by hand, with few words."""

from __future__ import annotations

from typing import Any

from schemas.arrays import pack_f4, pack_i4
from schemas.record import Record
from schemas.session import Claim, Close, Open, Request, Sampling
from schemas.span import Span
from workers.ledger import Ledger, SessionState

SAMPLING = Sampling(max_tokens=8)


def claim(epoch: int, **more: Any) -> Claim:
    return Claim(epoch=epoch, node="n", incarnation="i", **more)


def open_(**more: Any) -> Open:
    return Open(nonce=b"o", check="abcdef", **more)


def request(session: int, tokens: tuple[int, ...], nonce: bytes = b"r", **more: Any) -> Request:
    return Request(session=session, nonce=nonce, tokens=pack_i4(tokens), sampling=SAMPLING, **more)


def span(
    session: int, of: int, start: int, tokens: tuple[int, ...], logprobs: tuple[float, ...], version: int, finish: Any = None
) -> Span:
    return Span(
        session=session, request=of, epoch=7, start=start, tokens=pack_i4(tokens), logprobs=pack_f4(logprobs), version=version,
        kv_version=version, finish=finish,
    )


def close(session: int, **more: Any) -> Close:
    return Close(session=session, nonce=b"c", **more)


def folded(*log: Record) -> Ledger:
    ledger = Ledger()
    for offset, record in enumerate(log):
        ledger.apply(offset, record)
    return ledger


def session_of(*log: Record, at: int = 1) -> SessionState:
    return folded(*log).sessions[at]
