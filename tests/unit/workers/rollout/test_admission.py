"""Which requests start, and in which order: what is nearly done first, what killed its owners alone."""

from __future__ import annotations

import dataclasses

from tests.unit.workers.test_ledger import claim, fold, open_, request, span
from workers.ledger import SUSPECT_DEATHS, RequestState, SessionState
from workers.rollout.admission import Admission, Candidate
from workers.rollout.engines.base import JobId


def candidate(session: SessionState, state: RequestState, *, deaths: int = 0) -> Candidate:
    return Candidate(JobId(0, state.offset, 7), session, dataclasses.replace(state, deaths=deaths))


def test_short_remainders_start_first_and_equal_ones_in_the_order_of_the_log() -> None:
    ledger = fold(
        claim(7), open_(), request(1, b"a"), request(1, b"b"), request(1, b"c"), request(1, b"d"),
        span(1, 3, 7, 0, (0, 1, 2, 3, 4)), span(1, 4, 7, 0, (0,)), span(1, 5, 7, 0, (0, 1, 2, 3, 4)),
    )  # fmt: skip
    admission = Admission()
    for session, state in ledger.unfinished():
        admission.offer(candidate(session, state))
    started = admission.take()
    assert [(each.id.request, each.remainder) for each in started] == [(3, 3), (5, 3), (4, 7), (2, 8)]


def test_a_suspect_still_goes_before_short_ones_and_alone() -> None:
    ledger = fold(claim(7), open_(), request(1, b"a"), request(1, b"b"), span(1, 3, 7, 0, (0, 1, 2)))
    (session, first), (_, second) = ledger.unfinished()
    admission = Admission()
    admission.offer(candidate(session, second))
    admission.offer(candidate(session, first, deaths=SUSPECT_DEATHS))
    assert [each.id.request for each in admission.take()] == [2]
    assert admission.take() == []
    admission.end(JobId(0, 2, 7))
    assert [each.id.request for each in admission.take()] == [3]


def test_a_suspect_waits_until_nothing_else_runs_and_holds_up_those_who_come_after_it() -> None:
    ledger = fold(claim(7), open_(), request(1, b"a"), request(1, b"b"), request(1, b"c"))
    (session, first), (_, second), (_, third) = ledger.unfinished()
    admission = Admission()
    admission.offer(candidate(session, first))
    assert [each.id.request for each in admission.take()] == [2]
    admission.offer(candidate(session, second, deaths=SUSPECT_DEATHS))
    admission.offer(candidate(session, third))
    assert admission.take() == []
    admission.end(JobId(0, 2, 7))
    assert [each.id.request for each in admission.take()] == [3]
    assert admission.release(0) == [JobId(0, 3, 7)]
    assert admission.take() == [], "its partition was given up, with all that waited there"
