"""When sessions are closed for their agents: by silence as this process saw it, by age as the log stamped it."""

from __future__ import annotations

from schemas.record import Record
from schemas.session import Close
from tests.unit.workers.assembler.session_log import claim, close, open_, request, span
from workers.assembler.deadlines import Deadlines
from workers.ledger import Claimed, Ledger


def feed(deadlines: Deadlines, ledger: Ledger, record: Record, timestamp_ms: int, now_s: float) -> None:
    change = ledger.apply(ledger.next, record)
    if change is not None and not isinstance(change, Claimed):
        deadlines.saw(change.session, timestamp_ms, now_s)


def test_silence_closes_a_session_once_and_names_its_last_counted_record() -> None:
    deadlines, ledger = Deadlines(idle_s=10, max_age_s=1e9), Ledger()
    feed(deadlines, ledger, open_(), 0, 100.0)
    feed(deadlines, ledger, request(0, (1,)), 0, 101.0)
    feed(deadlines, ledger, claim(7), 0, 101.0)
    feed(deadlines, ledger, span(0, 1, 0, (5,), (-1.0,), 0, "stop"), 0, 105.0)
    assert deadlines.due(114.9) == []
    assert deadlines.due(115.0) == [Close(session=0, outcome="idle", idle=True, seen=3)]
    assert deadlines.due(1000.0) == []


def test_a_running_request_holds_the_session_open_until_it_ended() -> None:
    deadlines, ledger = Deadlines(idle_s=10, max_age_s=1e9), Ledger()
    feed(deadlines, ledger, claim(7), 0, 0.0)
    feed(deadlines, ledger, open_(), 0, 0.0)
    feed(deadlines, ledger, request(1, (1,)), 0, 0.0)
    assert deadlines.due(1000.0) == []
    feed(deadlines, ledger, span(1, 2, 0, (5,), (-1.0,), 0, "stop"), 0, 1001.0)
    assert deadlines.due(1010.0) == []
    assert [found.seen for found in deadlines.due(1011.0)] == [3]


def test_a_record_after_an_idle_close_that_was_ignored_starts_the_silence_anew() -> None:
    deadlines, ledger = Deadlines(idle_s=10, max_age_s=1e9), Ledger()
    feed(deadlines, ledger, open_(), 0, 0.0)
    (asked,) = deadlines.due(10.0)
    feed(deadlines, ledger, request(0, (1,)), 0, 11.0)
    feed(deadlines, ledger, asked, 0, 11.0)
    assert ledger.sessions[0].is_open
    feed(deadlines, ledger, claim(7), 0, 12.0)
    feed(deadlines, ledger, span(0, 1, 0, (5,), (-1.0,), 0, "stop"), 0, 12.0)
    assert [found.seen for found in deadlines.due(22.0)] == [4]


def test_age_is_counted_on_the_stamps_of_the_log_and_closes_what_runs() -> None:
    deadlines, ledger = Deadlines(idle_s=1e9, max_age_s=60), Ledger()
    feed(deadlines, ledger, claim(7), 0, 0.0)
    feed(deadlines, ledger, open_(), 1_000_000, 5.0)
    feed(deadlines, ledger, request(1, (1,)), 1_000_000, 5.0)
    feed(deadlines, ledger, open_(), 1_050_000, 6.0)
    assert deadlines.due(15.9) == []
    (expired,) = deadlines.due(16.0)
    assert (expired.session, expired.idle, expired.outcome) == (1, False, "expired")
    feed(deadlines, ledger, expired, 1_060_000, 16.0)
    assert not ledger.sessions[1].is_open
    assert deadlines.due(60.0) == []


def test_an_ended_session_has_no_deadlines() -> None:
    deadlines, ledger = Deadlines(idle_s=10, max_age_s=60), Ledger()
    feed(deadlines, ledger, open_(), 0, 0.0)
    feed(deadlines, ledger, close(0), 0, 1.0)
    assert deadlines.due(1e6) == []


def test_sessions_of_a_snapshot_keep_their_age_and_begin_their_silence_anew() -> None:
    deadlines, ledger = Deadlines(idle_s=1e9, max_age_s=60), Ledger()
    for stamp in (1_000_000, 1_040_000):
        feed(deadlines, ledger, open_(), stamp, 0.0)
    resumed = Deadlines(idle_s=30, max_age_s=60)
    resumed.resume(ledger.sessions.values(), deadlines.opened_ms, deadlines.newest_ms, 500.0)
    assert resumed.due(519.9) == []
    assert [found.session for found in resumed.due(520.0)] == [0]
    assert [(found.session, found.idle) for found in resumed.due(530.0)] == [(0, True), (1, True)]


def test_a_session_whose_close_for_age_was_on_its_way_is_closed_by_the_next_one() -> None:
    deadlines, ledger = Deadlines(idle_s=1e9, max_age_s=60), Ledger()
    feed(deadlines, ledger, open_(), 1_000_000, 0.0)
    assert len(deadlines.due(60.0)) == 1
    resumed = Deadlines(idle_s=1e9, max_age_s=60)
    resumed.resume(ledger.sessions.values(), deadlines.opened_ms, deadlines.newest_ms, 0.0)
    assert len(resumed.due(0.0)) == 1
