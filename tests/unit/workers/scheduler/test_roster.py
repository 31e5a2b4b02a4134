"""Time by own Ticks, incarnations that never come back, and who goes on when a second scheduler starts."""

from __future__ import annotations

import pytest

from schemas.grant import Grant
from schemas.node import Control, NodeStatus, State, Tick
from schemas.session import Cause
from workers.scheduler.decide import decide
from workers.scheduler.roster import LEFT_LIMIT, Roster
from workers.scheduler.view import HeldGrant


def status(name: str = "a", incarnation: str = "a1", state: State = "serving") -> NodeStatus:
    return NodeStatus(node=name, incarnation=incarnation, tags=["rollout"], state=state, grants_seen=3, partitions=[1, 2])


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


@pytest.mark.parametrize(("last_word", "cause"), [("left", "moved"), ("serving", "dead")])
def test_what_a_followed_incarnation_said_last_is_why_its_partition_is_granted_anew(last_word: State, cause: Cause) -> None:
    roster = Roster("me", 4)
    for incarnation, state in (("a1", "serving"), ("a1", last_word), ("a2", "serving")):
        roster.apply(status(incarnation=incarnation, state=state), is_heard=True)  # type: ignore[arg-type]
    (grant,) = decide(roster.view(1, {0: HeldGrant(2, Grant(partition=0, node="a", incarnation="a1"))}))
    assert isinstance(grant, Grant)
    assert (grant.incarnation, grant.cause) == ("a2", cause)


def test_what_is_remembered_of_those_that_left_is_bounded() -> None:
    roster = Roster("me", 4)
    for number in range(LEFT_LIMIT + 2):
        roster.apply(status(incarnation=f"a{number}", state="left"), is_heard=True)
    left = roster.view(1, {}).left
    assert (len(left), "a1" in left, "a2" in left) == (LEFT_LIMIT, False, True)


def test_a_first_tick_that_is_resent_late_supersedes_nobody() -> None:
    log = [tick("old", 1), tick("new", 1), tick("old", 1), tick("new", 2)]
    old, new = Roster("old", 4), Roster("new", 4)
    for record in log:
        old.apply(record, is_heard=True)
        new.apply(record, is_heard=True)
    assert (old.successor, new.successor) == ("new", None)
