"""What was fetched leaves whole and once, whatever is forgotten while it is looked at."""

from __future__ import annotations

from streams.broker import Message
from streams.inbox import Inbox


def message(partition: int, offset: int) -> Message:
    return Message("t", partition, offset, 0, None, b"", ())


def filled(*places: tuple[int, int]) -> Inbox:
    inbox = Inbox()
    inbox.put([message(*place) for place in places])
    return inbox


def test_what_is_handed_on_leaves_and_the_rest_follows() -> None:
    inbox = filled((0, 5), (1, 7), (0, 6))
    first = inbox.next(2)
    assert (first, inbox.first(0), len(inbox)) == ([message(0, 5), message(1, 7)], 5, 3)
    assert inbox.passed(first)
    assert (inbox.next(2), inbox.first(0), inbox.first(1)) == ([message(0, 6)], 6, None)


def test_what_is_forgotten_while_it_is_looked_at_takes_nothing_else_along() -> None:
    inbox = filled((0, 5), (1, 7), (1, 8))
    looked_at = inbox.next(2)
    inbox.forget(0)
    assert not inbox.passed(looked_at)
    assert inbox.next(9) == [message(1, 7), message(1, 8)]


def test_what_was_forgotten_and_fetched_again_is_not_handed_on_twice() -> None:
    inbox = filled((0, 5), (0, 6))
    looked_at = inbox.next(2)
    inbox.forget(0)
    inbox.put([message(0, 6), message(0, 7)])
    assert not inbox.passed(looked_at)
    assert inbox.next(9) == [message(0, 6), message(0, 7)]
