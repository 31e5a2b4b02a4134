"""The fluid engine by hand. An iteration takes 1 s and 0.5 s a request; prefill runs at 10 tokens a second."""

from __future__ import annotations

import pytest

from infra.simulate.clock import Clock
from infra.simulate.engine import Engine, Work
from infra.simulate.sessions import Group, Session
from schemas.errors import NoProgress
from workers.scheduler.training import Costs

COSTS = Costs(sync_s=3.0, iteration_s=1.0, request_s=0.5, slots=2, prefill_tokens_per_s=10.0)


class Bench:
    """One engine, and when each of its sessions ended."""

    def __init__(self, capacity: float = 1.0) -> None:
        self.clock = Clock()
        self.ended_s: dict[Session, float] = {}
        self.engine = Engine(self.clock, COSTS, capacity, Work(), self._ended)

    def _ended(self, session: Session) -> None:
        self.ended_s[session] = self.clock.now_s

    def until(self, time_s: float) -> None:
        is_there: list[bool] = []
        self.clock.at(time_s, lambda: is_there.append(True))
        self.clock.run(lambda: bool(is_there), 1e6)


def session(tokens: int, prompt_tokens: int = 0) -> Session:
    made = Session(Group(0, 1, 0.0), (tokens,), (), prompt_tokens, 0)
    made.begin()
    return made


def test_one_alone_then_two_together() -> None:
    bench, first, second = Bench(), session(10), session(10)
    bench.engine.admit(first)
    bench.until(6.0)  # four tokens, 1.5 s each
    bench.engine.admit(second)
    bench.until(100.0)
    assert bench.ended_s == {first: pytest.approx(6 + 6 * 2), second: pytest.approx(18 + 4 * 1.5)}  # six together, four alone
    assert bench.engine.work.busy_s == pytest.approx(24.0)


def test_twice_the_capacity_is_twice_as_fast() -> None:
    bench, only = Bench(2.0), session(10, 20)
    bench.engine.admit(only)
    bench.until(100.0)
    assert bench.ended_s == {only: pytest.approx(1.0 + 7.5)}


def test_prefill_stops_decoding() -> None:
    bench, first, second = Bench(), session(4), session(4, 50)
    bench.engine.admit(first)
    bench.until(3.0)  # two tokens
    bench.engine.admit(second)  # 5 s of prefill
    bench.until(100.0)
    assert bench.ended_s == {first: pytest.approx(3 + 5 + 2 * 2), second: pytest.approx(12 + 2 * 1.5)}


def test_a_third_request_waits_for_a_slot() -> None:
    bench, requests = Bench(), [session(5), session(5), session(5)]
    for each in requests:
        bench.engine.admit(each)
    bench.until(100.0)
    assert [bench.ended_s[each] for each in requests] == [pytest.approx(10.0), pytest.approx(10.0), pytest.approx(17.5)]


def test_an_update_in_the_middle_computes_the_context_again() -> None:
    bench, only = Bench(), session(10, 10)
    bench.engine.admit(only)
    bench.until(7.0)  # 1 s of prefill, four tokens
    bench.engine.update(1, is_partial=True)  # 3 s of loading, and 14 tokens again: 1.4 s
    bench.until(100.0)
    assert bench.ended_s == {only: pytest.approx(7 + 3 + 1.4 + 6 * 1.5)}
    assert only.tokens == [(0, pytest.approx(4.0)), (1, pytest.approx(6.0))]
    assert bench.engine.work.reprefilled == pytest.approx(14.0)


def test_an_update_between_requests_waits_for_those_that_run_and_holds_those_that_come() -> None:
    bench, first, second = Bench(), session(4), session(4)
    bench.engine.admit(first)
    bench.until(3.0)
    bench.engine.update(1, is_partial=False)
    bench.engine.admit(second)
    bench.until(100.0)
    assert bench.ended_s == {first: pytest.approx(6.0), second: pytest.approx(6 + 3 + 4 * 1.5)}
    assert (first.tokens, second.tokens) == ([(0, pytest.approx(4.0))], [(1, pytest.approx(4.0))])


def test_a_request_goes_on_elsewhere_where_it_stood() -> None:
    bench, only = Bench(), session(10, 10)
    bench.engine.admit(only)
    bench.until(7.0)
    assert bench.engine.abort() == [only]
    other = Engine(bench.clock, COSTS, 1.0, Work(), bench._ended)
    other.admit(only)  # 14 tokens of context: 1.4 s
    bench.until(100.0)
    assert bench.ended_s == {only: pytest.approx(7 + 1.4 + 6 * 1.5)}
    assert sum(count for _, count in only.tokens) == pytest.approx(10.0)
    assert other.work.reprefilled == pytest.approx(14.0)


def test_what_was_not_in_the_log_is_sampled_again() -> None:
    bench, only = Bench(), session(10)
    bench.engine.admit(only)
    bench.until(6.0)
    bench.engine.abort()
    assert only.lose(1.0) == pytest.approx(1.0)
    assert (only.left, only.tokens) == (pytest.approx(7.0), [(0, pytest.approx(3.0))])
    assert only.lose(float("inf")) == pytest.approx(3.0)
    assert (only.left, only.context, only.tokens) == (pytest.approx(10.0), pytest.approx(0.0), [])


def test_where_nothing_happens_the_simulation_says_so() -> None:
    with pytest.raises(NoProgress, match="nothing more happens after 0 s"):
        Clock().run(lambda: False, 10.0)
