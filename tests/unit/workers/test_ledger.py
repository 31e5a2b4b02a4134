"""The rules R1 to R5 by hand-worked logs, and the fold's own laws on random ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import pack_f4, pack_i4
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request, Sampling
from schemas.span import Span
from workers.ledger import Claimed, Extended, Ledger, Opened, Requested, RequestEnded, SessionEnded

SAMPLING = Sampling(max_tokens=8)


def claim(epoch: int, **more: Any) -> Claim:
    return Claim(epoch=epoch, node="n", incarnation="i", **more)


def open_(nonce: bytes = b"o") -> Open:
    return Open(nonce=nonce, check="abcdef")


def request(session: int, nonce: bytes = b"r", tokens: tuple[int, ...] = (1, 2), **more: Any) -> Request:
    return Request(session=session, nonce=nonce, tokens=pack_i4(tokens), sampling=SAMPLING, **more)


def span(session: int, of: int, epoch: int, start: int, tokens: tuple[int, ...], finish: Any = None, version: int = 0) -> Span:
    return Span(
        session=session, request=of, epoch=epoch, start=start, tokens=pack_i4(tokens), logprobs=pack_f4([-0.5] * len(tokens)),
        version=version, kv_version=version, finish=finish,
    )


def fold(*records: Record, ledger: Ledger | None = None) -> Ledger:
    ledger = ledger or Ledger()
    for offset, record in enumerate(records, ledger.next):
        ledger.apply(offset, record)
    return ledger


def test_a_call_from_open_to_close() -> None:
    ledger = Ledger()
    assert isinstance(ledger.apply(0, claim(7)), Claimed)
    assert isinstance(ledger.apply(1, open_()), Opened)
    assert isinstance(ledger.apply(2, request(1)), Requested)
    assert isinstance(ledger.apply(3, span(1, 2, 7, 0, (10, 11))), Extended)
    change = ledger.apply(4, span(1, 2, 7, 2, (12,), "stop", version=1))
    assert isinstance(change, Extended)
    assert change.request.end == (4, "stop")
    assert change.request.token_ids() == [10, 11, 12]
    assert change.request.versions() == [0, 0, 1]
    assert change.request.logprob_values() == [-0.5] * 3
    assert isinstance(ledger.apply(5, Close(session=1)), SessionEnded)
    assert ledger.sessions[1].ended_at == 5


def test_r1_only_spans_of_the_greatest_claim_count() -> None:
    ledger = fold(claim(7), open_(), request(1), claim(9), span(1, 2, 7, 0, (10,)), span(1, 2, 9, 0, (20,)))
    assert ledger.sessions[1].requests[2].token_ids() == [20]


def test_r1_a_late_lower_claim_changes_nothing() -> None:
    ledger = fold(claim(9), open_(), request(1))
    assert ledger.apply(3, claim(7)) is None
    assert ledger.apply(4, span(1, 2, 7, 0, (10,))) is None
    assert ledger.epoch == 9


def test_r2_a_resent_span_is_ignored_and_the_request_goes_on() -> None:
    ledger = fold(claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11)))
    assert ledger.apply(4, span(1, 2, 7, 0, (10, 11))) is None
    assert isinstance(ledger.apply(5, span(1, 2, 7, 2, (12,))), Extended)


@pytest.mark.parametrize(
    ("start", "tokens"),
    [(1, (10,)), (0, (10, 99)), (0, (10,)), (3, (12,))],
    ids=["inside", "other tokens", "other boundary", "gap"],
)
def test_r2_any_other_start_fails_the_request(start: int, tokens: tuple[int, ...]) -> None:
    ledger = fold(claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11)))
    change = ledger.apply(4, span(1, 2, 7, start, tokens))
    assert isinstance(change, RequestEnded)
    assert change.request.end == (4, "failed")
    assert change.request.token_ids() == [10, 11]


def test_r3_the_first_end_wins() -> None:
    ledger = fold(claim(7), open_(), request(1), Cancel(session=1, request=2))
    assert ledger.apply(4, span(1, 2, 7, 0, (10,), "stop")) is None
    assert ledger.apply(5, Cancel(session=1, request=2)) is None
    ledger.apply(6, Close(session=1))
    assert ledger.apply(7, request(1, b"late")) is None
    assert ledger.apply(8, Close(session=1, outcome="again")) is None
    assert ledger.sessions[1].requests[2].end == (3, "cancelled")


def test_r3_close_ends_what_runs() -> None:
    ledger = fold(claim(7), open_(), request(1), Close(session=1))
    assert ledger.sessions[1].requests[2].end == (3, "closed")


def test_r3_an_idle_close_is_ignored_if_a_record_followed_what_it_saw() -> None:
    ledger = fold(claim(7), open_(), request(1))
    assert ledger.apply(3, Close(session=1, idle=True, seen=1)) is None
    assert isinstance(ledger.apply(4, Close(session=1, idle=True, seen=2)), SessionEnded)


def test_a_resent_request_runs_once_and_every_open_is_a_session() -> None:
    ledger = fold(claim(7), open_(), open_(), request(1), request(1))
    assert list(ledger.sessions) == [1, 2]
    assert list(ledger.sessions[1].requests) == [3]
    assert isinstance(ledger.apply(5, request(2)), Requested), "nonces are compared within a session only"


def test_a_second_turn_extends_the_recorded_sequence() -> None:
    ledger = fold(claim(7), open_(), request(1, tokens=(1, 2)), span(1, 2, 7, 0, (10, 11), "stop"))
    fold(request(1, b"second", tokens=(3,), base=2, base_length=4), ledger=ledger)
    second = ledger.sessions[1].requests[4]
    assert second.prompt_ids() == [1, 2, 10, 11, 3]
    fold(span(1, 4, 7, 0, (12,), "stop"), request(1, b"branch", tokens=(5,), base=4, base_length=3), ledger=ledger)
    assert ledger.sessions[1].requests[6].prompt_ids() == [1, 2, 10, 5]


@pytest.mark.parametrize(("base", "length"), [(99, 1), (2, 5)], ids=["unknown", "too long"])
def test_a_base_that_is_not_there_fails_the_request(base: int, length: int) -> None:
    ledger = fold(claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11)), request(1, b"x", base=base, base_length=length))
    failed = ledger.sessions[1].requests[4]
    assert failed.end == (4, "failed")
    change = ledger.apply(5, request(1, b"y", base=4, base_length=0))
    assert isinstance(change, Requested)
    assert change.request.end == (5, "failed")


def test_poison_counts_deaths_without_progress() -> None:
    ledger = fold(claim(1), open_(), request(1), claim(2, cause="dead"), claim(3, cause="moved"), claim(4, cause="dead"))
    poison = ledger.sessions[1].requests[2]
    assert poison.deaths == 2
    fold(span(1, 2, 4, 0, (10,)), ledger=ledger)
    assert poison.deaths == 0


def test_poison_while_there_are_suspects_only_the_one_that_ran_alone_is_blamed() -> None:
    ledger = fold(open_(), request(0, b"poison"), request(0, b"innocent"), request(0, b"bystander"))
    fold(claim(1, cause="dead"), claim(2, cause="dead"), claim(3, cause="dead"), ledger=ledger)
    assert [each.deaths for _, each in ledger.unfinished()] == [3, 2, 2]
    fold(Cancel(session=0, request=1), claim(4, cause="dead"), ledger=ledger)
    assert [each.deaths for _, each in ledger.unfinished()] == [3, 2]


def test_poison_is_counted_alike_by_whoever_begins_at_the_position_after_everything_restarted() -> None:
    log = [claim(1), open_(), request(1), claim(2, cause="dead"), open_(b"p"), request(4), claim(3, cause="dead")]
    assert fold(*log).position() == (1, 1)
    anew = Ledger(Position(1, 1))
    for offset, record in enumerate(log[1:], 1):
        anew.apply(offset, record)
    assert [each.deaths for _, each in anew.unfinished()] == [2, 1]


def test_r5_position_is_the_oldest_remembered_session_with_the_epoch_there() -> None:
    ledger = Ledger()
    assert ledger.position() == (0, -1)
    fold(claim(3), open_(b"a"), claim(5), open_(b"b"), ledger=ledger)
    assert ledger.position() == (1, 3)
    fold(Close(session=1), ledger=ledger)
    assert ledger.position() == (1, 3), "remembered until it is forgotten"
    ledger.forget(ledger.sessions[1])
    assert ledger.position() == (3, 5)
    fold(Close(session=3), ledger=ledger)
    ledger.forget(ledger.sessions[3])
    assert ledger.position() == (6, 5)


def test_retention_passed_nothing_counts_before_a_reset_at_least_as_great_as_the_floor() -> None:
    ledger = Ledger(Position(100, -1), floor=7)
    fold(open_(), claim(6, reset=True), claim(7), open_(), ledger=ledger)
    assert ledger.sessions == {}
    change = ledger.apply(104, claim(8, reset=True))
    assert isinstance(change, Claimed)
    fold(open_(), ledger=ledger)
    assert list(ledger.sessions) == [105]


def test_a_reset_ends_every_earlier_session() -> None:
    ledger = fold(claim(1), open_(), request(1))
    change = ledger.apply(3, claim(2, reset=True))
    assert isinstance(change, Claimed)
    assert [session.offset for session in change.ended] == [1]
    assert ledger.apply(4, span(1, 2, 2, 0, (10,))) is None
    assert ledger.sessions[1].close is None


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    """Any order of plausible and implausible records over a few sessions, requests and epochs."""
    places = st.integers(0, 12)
    tokens = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
    record = st.one_of(
        st.builds(lambda epoch, cause: claim(epoch, cause=cause), st.integers(0, 4), st.sampled_from(["dead", "moved"])),
        st.builds(open_, st.binary(min_size=1, max_size=1)),
        st.builds(lambda s, n: request(s, n), places, st.binary(min_size=1, max_size=1)),
        st.builds(lambda s, r, e, at, t, f: span(s, r, e, at, t, f), places, places, st.integers(0, 4), st.integers(0, 3), tokens,
                  st.sampled_from([None, None, "stop"])),
        st.builds(lambda s, r: Cancel(session=s, request=r), places, places),
        st.builds(lambda s: Close(session=s), places),
        st.builds(lambda s, seen: Close(session=s, idle=True, seen=seen), places, places),
    )
    return draw(st.lists(record, max_size=40))


def image(ledger: Ledger, low: int) -> dict[int, object]:
    return {
        offset: (session.ended_at, session.last, [(n, r.end, r.token_ids(), r.parts) for n, r in session.requests.items()])
        for offset, session in ledger.sessions.items()
        if offset >= low
    }


@settings(max_examples=150, deadline=None)
@given(logs(), st.data())
def test_a_fold_from_any_position_agrees_with_the_whole_fold(records: list[Record], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(records)))
    before = fold(*records[:cut])
    for session in [session for session in before.sessions.values() if not session.is_open]:
        before.forget(session)
    position = before.position()
    late = Ledger(position)
    fold(*records[position.offset :], ledger=late)
    whole = fold(*records)
    assert image(late, position.offset) == image(whole, position.offset)
    assert late.epoch == whole.epoch


@settings(max_examples=100, deadline=None)
@given(logs())
def test_accepted_tokens_only_grow_and_ends_never_change(records: list[Record]) -> None:
    ledger = Ledger()
    seen: dict[int, tuple[list[int], object]] = {}
    for offset, record in enumerate(records):
        ledger.apply(offset, record)
        for session in ledger.sessions.values():
            for number, state in session.requests.items():
                tokens, end = seen.get(number, ([], None))
                assert state.token_ids()[: len(tokens)] == tokens
                assert end is None or (state.end == end and state.token_ids() == tokens)
                seen[number] = (state.token_ids(), state.end)
