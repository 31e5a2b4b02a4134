"""The crash matrix counts from raw entries: each case is a log written by hand, with one thing wrong in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.audit.entry import Entry
from infra.audit.verify import AuditOptions
from tests.chaos.check import Kill, Raw, Slice, check, done_of, lost_of, stall_s_of, trainer_back_s_of, twice_of
from tests.unit.infra.audit.raw_log import RawLog, complete_log

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


def test_a_close_that_an_agent_was_told_of_stands_in_the_log_unless_retention_took_it() -> None:
    told = replace(ALL, told=frozenset({(PARTITION, 10), (PARTITION, 20)}))
    read = raw(*a_session(10), step(0, 10))
    assert lost_of(read, told) == {"the Close of session 3-20 does not stand in the log"}
    read.first = {PARTITION: 21}
    assert lost_of(read, told) == set()


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


def test_a_session_is_done_when_its_agent_closed_it_and_the_trainer_decided() -> None:
    idle = entry("Close", 33, session=30, idle=True)
    read = raw(*a_session(10), *a_session(20), *a_session(30)[:3], idle, step(0, 10))
    assert done_of(read, ALL) == {(PARTITION, 10)}
    assert done_of(read, replace(ALL, has_trainer=False)) == {(PARTITION, 10), (PARTITION, 20)}


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


def of(log: RawLog) -> tuple[set[str], set[str]]:
    """What is lost and what is there twice in a whole log, counted as after a row: from its bytes."""
    row = Slice(since={}, marks=dict(log.list_log().ends("sessions")), has_trainer=True)
    counts = check(log.list_log(), row, AuditOptions(weights=False))
    return set(counts.lost), set(counts.twice)


def without(*where: tuple[str, int, int]) -> Callable[[RawLog], None]:
    """A log that lost records."""

    def plant(log: RawLog) -> None:
        for each in where:
            del log.records[each]

    return plant


def again(where: tuple[str, int, int], at: int, **changes: Any) -> Callable[[RawLog], None]:
    """A log that holds a record once more, behind the others."""

    def plant(log: RawLog) -> None:
        topic, partition, offset = where
        log.put_fields((topic, partition, at), {**log.at(topic, partition, offset), **changes})

    return plant


@pytest.mark.parametrize(
    ("plant", "lost", "twice"),
    [
        (lambda log: None, set(), set()),
        (without(("trajectories", 0, 10)), {"session 0-20 has no Trajectory"}, set()),
        (without(("trajectories", 0, 0)), set(), set()),  # its double counts in its stead
        (without(("training", 0, 20)), {"session 0-220 is in no Step or Drops"}, set()),
        (without(("training", 0, 30), ("training", 0, 31)), {"session 1-10 is in no Step or Drops"}, set()),
        (without(("sessions", 1, 40), ("sessions", 1, 50)), {"request 1-20 has no end"}, set()),
        (again(("training", 0, 30), 40, step=3), set(), {"session 1-10 was decided 2 times", "3 tokens were trained twice"}),
        (again(("training", 0, 20), 40), set(), {"session 0-220 was decided 2 times"}),
        (again(("trajectories", 0, 10), 50, close=240), set(), {"2 Trajectories of session 0-20 count"}),
        (again(("trajectories", 0, 10), 50), set(), set()),
        (again(("tasks", 0, 10), 20), set(), {"task 1 stands 2 times"}),
    ],
)
def test_a_record_that_is_taken_out_or_put_in_again_is_noticed(
    tmp_path: Path, plant: Callable[[RawLog], None], lost: set[str], twice: set[str]
) -> None:
    log = complete_log(tmp_path)
    plant(log)
    assert of(log) == (lost, twice)
