"""Silences, from hand-made times."""

from __future__ import annotations

from schemas.arrays import pack_f4, pack_i4
from schemas.session import Request, Sampling
from schemas.span import Span
from schemas.topics import SESSIONS
from streams.codec import Entry
from tests.chaos.silence import answer_silence_s, longest_gap_s
from tests.flow.seen import Seen


def test_the_longest_gap_is_counted_if_it_ended_after_the_fault() -> None:
    assert longest_gap_s([12_000, 1000, 9000, 9500], since_ms=9000) == 2.5
    assert longest_gap_s([12_000, 1000, 9000, 9500], since_ms=8999) == 8.0
    assert longest_gap_s([1000], since_ms=0) == 0.0


def test_an_answer_is_silent_from_its_request_and_between_its_spans_not_between_others() -> None:
    seen = Seen((SESSIONS,))
    for offset, at_ms in ((10, 1000), (11, 1000)):
        request = Request(session=1, tokens=pack_i4([1]), sampling=Sampling(max_tokens=9), nonce=b"%d" % offset)
        seen._entries[SESSIONS.name].append(Entry(0, offset, at_ms, request))
    for offset, request_offset, at_ms in ((12, 10, 4000), (13, 11, 1500), (14, 11, 3000)):
        span = Span(
            session=1, request=request_offset, epoch=0, start=0, tokens=pack_i4([5]), logprobs=pack_f4([0.0]), version=0, kv_version=0
        )  # fmt: skip
        seen._entries[SESSIONS.name].append(Entry(0, offset, at_ms, span))
    assert answer_silence_s(seen, since_ms=0) == 3.0
    assert answer_silence_s(seen, since_ms=4000) == 0.0
