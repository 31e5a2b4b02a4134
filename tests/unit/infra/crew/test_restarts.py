"""When a member is started again, by hand-worked times in seconds."""

from __future__ import annotations

from infra.crew.restarts import Restarts


def test_pauses_double_up_to_half_a_minute() -> None:
    restarts, pauses = Restarts(), []
    for _ in range(9):
        restarts.ended(10, now_s=100.0)
        pauses.append(restarts.due_s - 100.0)
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_a_member_that_worked_for_half_a_minute_starts_over() -> None:
    restarts = Restarts()
    restarts.ended(1, now_s=0.0)
    restarts.works(now_s=10.0)
    restarts.works(now_s=39.9)
    assert restarts.failures == 1
    restarts.works(now_s=40.0)
    assert restarts.failures == 0


def test_readiness_alone_does_not_start_over() -> None:
    """A member that gets ready and dies, over and over, is given up like one that never gets ready."""
    restarts, verdicts = Restarts(), []
    for minute in range(6):
        restarts.works(now_s=60.0 * minute)
        verdicts.append(restarts.ended(1, now_s=60.0 * minute + 29))
    assert verdicts == ["restart"] * 5 + ["give up"]


def test_what_trying_again_does_not_mend_is_given_up_at_once() -> None:
    assert [Restarts().ended(code, 0.0) for code in (2, 12, 21)] == ["give up"] * 3
    assert [Restarts().ended(code, 0.0) for code in (1, 10, 11, 20, 22, 40, 50, 60, -9, None)] == ["restart"] * 10


def test_a_broker_that_is_away_is_waited_for() -> None:
    restarts = Restarts()
    assert {restarts.ended(10, 0.0) for _ in range(50)} == {"restart"}


def test_a_member_whose_work_another_process_does_rests() -> None:
    assert Restarts().ended(30, 0.0) == "rest"
