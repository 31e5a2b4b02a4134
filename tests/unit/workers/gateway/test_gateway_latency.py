"""Added latency by hand."""

from __future__ import annotations

from workers.gateway.latency import Latency


def test_quantiles_are_of_what_the_engine_did_not_take() -> None:
    latency = Latency()
    assert latency.figures() is None
    for number in range(1, 101):
        latency.add(50.0 + number, 50.0)
    assert latency.figures() == {"p50": 50.0, "p99": 99.0}
    assert latency.calls == 100


def test_only_the_last_calls_are_kept() -> None:
    latency = Latency(kept=2)
    for whole in (1000.0, 5.0, 7.0):
        latency.add(whole, 0.0)
    assert latency.figures() == {"p50": 5.0, "p99": 7.0}


def test_an_engine_that_says_more_than_the_whole_adds_nothing() -> None:
    latency = Latency()
    latency.add(5.0, 9.0)
    assert latency.figures() == {"p50": 0.0, "p99": 0.0}
