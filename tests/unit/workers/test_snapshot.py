"""A fold that went through bytes is the fold: for random logs, at every cut. And what is no snapshot is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from schemas.errors import CorruptRecord
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Close
from tests.unit.workers.test_ledger import claim, fold, logs, open_, request, span
from workers.ledger import Ledger
from workers.snapshot import FORM, RECORD_BYTES, Backlog, encode, read, snapshot_of

TOPIC = "test.sessions"


def through_bytes(ledger: Ledger) -> Ledger:
    return read(encode(snapshot_of(ledger, TOPIC, 3)), TOPIC, 3).ledger()


def whole_state(ledger: Ledger) -> object:
    """All that a fold knows, as plain values."""
    return ledger.next, ledger.epoch, ledger.floor, [
        (
            session.offset, session.record, session.epoch, session.last, sorted(session.nonces), session.ended_at, session.close,
            [
                (
                    number, state.offset, state.record, state.base and state.base.offset, state.end, bytes(state.tokens),
                    bytes(state.logprobs), state.parts, state.deaths, state.detail, state.engine_ms, state.sequence(),
                )
                for number, state in session.requests.items()
            ],
        )
        for session in ledger.sessions.values()
    ]  # fmt: skip


def without_ended(ledger: Ledger) -> Ledger:
    for session in [session for session in ledger.sessions.values() if not session.is_open]:
        ledger.forget(session)
    return ledger


@settings(max_examples=60, deadline=None)
@given(logs())
def test_the_rest_upon_a_snapshot_is_the_whole_fold_at_every_cut(records: list[Record]) -> None:
    for cut in range(len(records) + 1):
        whole = without_ended(fold(*records[:cut]))
        late = through_bytes(whole)
        assert whole_state(late) == whole_state(whole)
        for offset, record in enumerate(records[cut:], cut):
            expected, answered = whole.apply(offset, record), late.apply(offset, record)
            assert type(answered) is type(expected)
        assert whole_state(late) == whole_state(whole)
        assert late.position() == whole.position()


def test_a_tree_a_failed_base_and_deaths_come_back() -> None:
    ledger = fold(
        claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11), "stop"), request(1, b"second", (3,), base=2, base_length=4),
        request(1, b"bad", base=99, base_length=1), claim(9, cause="dead"),
    )
    back = through_bytes(ledger)
    second, bad = back.sessions[1].requests[4], back.sessions[1].requests[5]
    assert second.prompt_ids() == [1, 2, 10, 11, 3]
    assert second.base is back.sessions[1].requests[2]
    assert (second.deaths, bad.base, bad.end) == (1, None, (5, "failed"))
    assert back.position() == Position(1, 7)
    assert back.apply(7, request(1, b"second", (3,), base=2, base_length=4)) is None, "its nonce was seen"


def test_ended_sessions_are_left_out() -> None:
    ledger = fold(claim(7), open_(), open_(), Close(session=1))
    assert list(through_bytes(ledger).sessions) == [2]


def test_a_fold_that_waits_for_a_reset_has_none() -> None:
    with pytest.raises(ValueError, match="waits for a reset"):
        snapshot_of(Ledger(Position(7, -1), floor=3), TOPIC, 3)


@pytest.mark.parametrize("cut", [0, 5, len(FORM), len(FORM) + 1, -1])
def test_damaged_bytes_are_refused(cut: int) -> None:
    content = encode(snapshot_of(fold(claim(7), open_(), request(1)), TOPIC, 3))
    with pytest.raises(CorruptRecord):
        read(content[:cut], TOPIC, 3)


def test_another_form_and_another_partition_are_refused() -> None:
    content = encode(snapshot_of(fold(claim(7), open_()), TOPIC, 3))
    with pytest.raises(CorruptRecord, match="another form"):
        read(content.replace(b"ledger 1", b"ledger 0"), TOPIC, 3)
    with pytest.raises(CorruptRecord, match=r"of test.sessions\[3\], not of test.sessions\[4\]"):
        read(content, TOPIC, 4)


def test_a_backlog_counts_from_the_oldest_open_session_or_the_last_snapshot() -> None:
    ledger, backlog = Ledger(), Backlog()

    def take(record: Record) -> None:
        backlog.saw(ledger.next, record)
        fold(record, ledger=ledger)

    for record in (claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11)), open_()):
        take(record)
    since_first = 4 * RECORD_BYTES + 2 * 4 + 2 * 8
    assert backlog.bytes_behind(ledger) == since_first
    assert backlog.is_due(ledger, since_first)
    assert not backlog.is_due(ledger, since_first + 1)
    take(Close(session=1))
    without_ended(ledger)
    assert backlog.bytes_behind(ledger) == 2 * RECORD_BYTES, "from the second session's Open on"
    backlog.taken()
    backlog.weighs(3 * RECORD_BYTES)
    assert backlog.bytes_behind(ledger) == 0
    for record in (open_(), open_()):
        take(record)
    assert not backlog.is_due(ledger, 1), "less than the last one took to write"
    take(open_())
    assert backlog.is_due(ledger, 1)


def test_nothing_open_is_nothing_to_keep() -> None:
    ledger, backlog = fold(claim(7)), Backlog()
    backlog.saw(0, claim(7))
    assert backlog.bytes_behind(ledger) == 0
