"""The crash matrix counts from raw entries: each case is a log written by hand, with one thing wrong in it."""

from __future__ import annotations

from typing import Any

from infra.audit.entry import Entry
from tests.chaos.check import Kill, Raw, Slice, lost_of, stall_s_of, trainer_back_s_of, twice_of

PARTITION = 3
ALL = Slice(since={}, marks={PARTITION: 100}, has_trainer=True)
WRITTEN_AT = {"Step": "training", "Drops": "training", "Trajectory": "trajectories", "Task": "tasks"}


def entry(kind: str, offset: int, at_ms: int = 0, **fields: Any) -> Entry:
    return Entry(WRITTEN_AT.get(kind, "sessions"), PARTITION, offset, at_ms, kind, fields)


def raw(*entries: Entry) -> Raw:
    read = Raw()
    for each in entries:
        read.entries[each.type].append(each)
    return read


def place(session: int) -> dict[str, int]:
    return {"partition": PARTITION, "offset": 0, "session": session}


def step(offset: int, *sessions: int, at_ms: int = 0) -> Entry:
    return entry("Step", offset, at_ms, plan={"places": [place(session) for session in sessions]}, drops=[])


def drops(offset: int, *sessions: int) -> Entry:
    return entry("Drops", offset, drops=[{"place": place(session)} for session in sessions])


def a_session(session: int, *, purpose: str = "train") -> list[Entry]:
    """Open, Request, closing Span, Close, and its Trajectory."""
    return [
        entry("Open", session, purpose=purpose),
        entry("Request", session + 1, session=session, nonce=b"%d" % session),
        entry("Span", session + 2, session=session, request=session + 1, finish="length"),
        entry("Close", session + 3, session=session, idle=False),
        entry("Trajectory", session, session=session, close=session + 3),
    ]


def test_a_whole_session_that_was_trained_once_is_neither_lost_nor_twice() -> None:
    read = raw(*a_session(10), *a_session(20, purpose="eval"), step(0, 10))
    assert lost_of(read, ALL) == set()
    assert twice_of(read) == set()


def test_a_closed_session_without_a_trajectory_is_lost() -> None:
    assert lost_of(raw(*a_session(10)[:-1], step(0, 10)), ALL) == {"session 3-10 has no Trajectory"}


def test_a_closed_training_session_that_nobody_decided_is_lost() -> None:
    assert lost_of(raw(*a_session(10), *a_session(20), drops(0, 20)), ALL) == {"session 3-10 is in no Step or Drops"}


def test_without_a_trainer_nobody_has_to_decide() -> None:
    assert lost_of(raw(*a_session(10)), Slice(since={}, marks={PARTITION: 100})) == set()


def test_a_request_without_an_end_is_lost_unless_it_is_another_ones_double() -> None:
    read = raw(*a_session(10)[:2], entry("Request", 15, session=10, nonce=b"10"), entry("Span", 16, request=11, finish=None))
    assert lost_of(read, ALL) == {"request 3-11 has no end"}


def test_what_began_behind_the_marks_may_still_be_under_way() -> None:
    assert lost_of(raw(*a_session(10)[:-1]), Slice(since={}, marks={PARTITION: 10}, has_trainer=True)) == set()


def test_a_session_that_was_decided_twice_is_named() -> None:
    assert twice_of(raw(*a_session(10), step(0, 10), drops(1, 10))) == {"session 3-10 was decided 2 times"}


def test_a_trajectory_written_again_does_not_count_and_one_with_a_later_close_does() -> None:
    again = entry("Trajectory", 11, session=10, close=13)
    assert twice_of(raw(*a_session(10), again)) == set()
    later = entry("Trajectory", 11, session=10, close=14)
    assert twice_of(raw(*a_session(10), later)) == {"2 Trajectories of session 3-10 count"}


def test_a_task_number_that_stands_twice_is_named() -> None:
    assert twice_of(raw(entry("Task", 0, number=4), entry("Task", 1, number=5), entry("Task", 2, number=4))) == {"task 4 stands 2 times"}


def test_the_longest_silence_between_spans_of_the_row_is_its_stall() -> None:
    read = raw(*(entry("Span", offset, at_ms) for offset, at_ms in ((1, 0), (5, 9_000), (6, 9_200), (7, 11_700))))
    assert stall_s_of(read, Slice(since={PARTITION: 5}, marks={})) == 2.5


def test_the_trainer_is_back_with_the_next_decision_after_its_death() -> None:
    read = raw(step(0, at_ms=900), step(1, at_ms=4_000), step(2, at_ms=5_000))
    assert trainer_back_s_of(read, [Kill("rollout-0", 100), Kill("trainer", 1_000)]) == 3.0
    assert trainer_back_s_of(read, [Kill("trainer", 5_000)]) is None
