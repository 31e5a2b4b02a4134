"""Time by own Ticks, incarnations that never come back, and who goes on when a second scheduler starts."""

from __future__ import annotations

from schemas.node import Control, NodeStatus, Tick
from workers.scheduler.roster import Roster


def status(name: str = "a", incarnation: str = "a1") -> NodeStatus:
    return NodeStatus(node=name, incarnation=incarnation, tags=["rollout"], state="serving", grants_seen=3, partitions=[1, 2])


def tick(scheduler: str, number: int) -> Tick:
    return Tick(scheduler=scheduler, number=number)


def test_only_own_ticks_count_and_a_status_starts_anew() -> None:
    roster = Roster("me", 4)
    roster.apply(status(), is_heard=False)
    roster.apply(tick("me", 1), is_heard=True)
    roster.apply(tick("other", 7), is_heard=True)
    roster.apply(tick("me", 2), is_heard=True)
    (found,) = roster.view(4, {}).nodes.values()
    assert (found.ticks, found.is_heard, found.grants_seen, found.partitions) == (2, False, 3, frozenset({1, 2}))
    roster.apply(status(), is_heard=True)
    (found,) = roster.view(4, {}).nodes.values()
    assert (found.ticks, found.is_heard) == (0, True)


def test_a_late_status_of_an_old_incarnation_changes_nothing() -> None:
    roster = Roster("me", 4)
    for incarnation in ("a1", "a2", "a1", "a3", "a2"):
        roster.apply(status(incarnation=incarnation), is_heard=True)
    assert roster.view(4, {}).nodes["a"].incarnation == "a3"


def test_wishes_stand_until_they_are_taken_back() -> None:
    roster = Roster("me", 4)
    for control in (Control(command="pause"), Control(command="drain", node="a"), Control(command="drain", node="b")):
        roster.apply(control, is_heard=True)
    assert (roster.view(4, {}).is_paused, roster.view(4, {}).draining) == (True, {"a", "b"})
    for control in (Control(command="resume"), Control(command="undrain", node="a")):
        roster.apply(control, is_heard=True)
    assert (roster.view(4, {}).is_paused, roster.view(4, {}).draining) == (False, {"b"})


def test_of_two_schedulers_the_one_that_began_later_goes_on() -> None:
    log = [tick("old", 41), tick("new", 1), tick("old", 42), tick("new", 2)]
    old, new = Roster("old", 4), Roster("new", 4)
    for record in log:
        old.apply(record, is_heard=True)
        new.apply(record, is_heard=True)
    assert (old.successor, new.successor) == ("new", None)
