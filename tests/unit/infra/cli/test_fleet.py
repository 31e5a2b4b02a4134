"""Who lives, who owns what, what is paused: hand-written logs of `nodes` and `grants`."""

from __future__ import annotations

from infra.cli.fleet import SILENT_MS, Fleet
from schemas.grant import Grant
from schemas.node import Control, NodeStatus, Tick
from schemas.record import Record
from streams.codec import Entry


def fleet_of(*records: Record) -> Fleet:
    """Record number n stands at offset n and came at n seconds."""
    fleet = Fleet(partitions=2)
    for number, record in enumerate(records):
        fleet.apply(Entry(0, number, number * 1000, record))
    return fleet


def tick(number: int, scheduler: str = "s1") -> Tick:
    return Tick(scheduler=scheduler, number=number)


def report(incarnation: str = "i1", node: str = "a") -> NodeStatus:
    return NodeStatus(node=node, incarnation=incarnation, tags=["rollout"], state="serving")


def test_a_node_is_dead_four_ticks_after_its_last_word() -> None:
    three = fleet_of(tick(1), report(), tick(2), tick(3), tick(4))
    assert three.life("a", now_ms=4000) == "alive"
    four = fleet_of(tick(1), report(), tick(2), tick(3), tick(4), tick(5))
    assert four.life("a", now_ms=5000) == "dead"


def test_ticks_that_compaction_removed_count_by_their_numbers() -> None:
    assert fleet_of(report(), tick(90)).life("a", now_ms=1000) == "dead"
    assert fleet_of(tick(86), report(), tick(90)).life("a", now_ms=2000) == "dead"
    assert fleet_of(tick(87), report(), tick(90)).life("a", now_ms=2000) == "alive"


def test_a_new_scheduler_counts_from_its_own_first_tick() -> None:
    records = (tick(70), report(), tick(1, "s2"), tick(2, "s2"), tick(3, "s2"))
    assert fleet_of(*records).life("a", now_ms=4000) == "alive"
    assert fleet_of(*records, tick(4, "s2")).life("a", now_ms=5000) == "dead"


def test_without_a_scheduler_nobody_knows_who_lives() -> None:
    assert fleet_of(report()).life("a", now_ms=0) == "unknown"
    silent = fleet_of(tick(1), report())
    assert silent.life("a", now_ms=SILENT_MS) == "alive"
    assert silent.life("a", now_ms=SILENT_MS + 1) == "unknown"


def test_a_node_that_left_is_not_dead() -> None:
    last_word = NodeStatus(node="a", incarnation="i1", tags=["rollout"], state="left")
    assert fleet_of(tick(1), last_word, tick(9)).life("a", now_ms=9000) == "left"


def test_an_incarnation_that_was_followed_never_comes_back() -> None:
    fleet = fleet_of(report("i1"), report("i2"), report("i1"))
    assert fleet.nodes["a"].status.incarnation == "i2"
    assert fleet.nodes["a"].at_ms == 1000


def test_the_newest_grant_of_a_partition_says_who_owns_it() -> None:
    fleet = fleet_of(
        Grant(partition=0, node="a", incarnation="i1"), Grant(partition=1, node="a", incarnation="i1"),
        Grant(partition=1, node="", holder="i1"), Grant(partition=0, node="b", incarnation="i2"),
    )
    assert fleet.owners() == {0: "b"}
    assert fleet.owned_by("a") == []
    assert fleet.grants[1].epoch == 2


def test_the_last_wish_stands() -> None:
    wishes = [Control(command="pause", reason="rack move"), Control(command="drain", node="a"), Control(command="drain", node="b")]
    fleet = fleet_of(*wishes, Control(command="undrain", node="a"))
    assert fleet.paused is not None
    assert fleet.paused.reason == "rack move"
    assert list(fleet.draining) == ["b"]
    assert fleet_of(*wishes, Control(command="resume")).paused is None
