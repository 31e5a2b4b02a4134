"""Groups: the sessions of one task, from the first that is heard of it to the decision.

Invariants:
- a slot belongs to the first usable session of its member, in the order of reading;
- a session without a group is a group of its own, with one member;
- every group has a deadline, also one of which nothing comes.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from trainer.feed.join import Item, Key

__all__ = ["Deadlines", "Group", "GroupKey"]

GroupKey = int | Key
"""The number of a group of tasks, or the place of a session that has none."""


@dataclass(slots=True, eq=False)
class Group:
    """`members` is None until a Task was read. `ended` are the members of which an attempt ended, usable or not.

    `waiting` are sessions without a reward yet, `spare` those whose slot was taken before. A group is `closed` from the moment when it is
    known what is trained of it. `last_at` (seconds) is its end whatever comes, `deadline` its end as things stand (infinite: not set).
    """

    key: GroupKey
    last_at: float
    members: int | None = None
    deadline: float = float("inf")
    ended: set[int] = field(default_factory=set)
    waiting: dict[Key, Item] = field(default_factory=dict)
    slots: dict[int, Item] = field(default_factory=dict)
    spare: list[Item] = field(default_factory=list)
    advantages: dict[int, float] = field(default_factory=dict)
    closed: bool = False

    def __post_init__(self) -> None:
        if self.number is None:
            self.members = 1

    @property
    def number(self) -> int | None:
        """The number in Tasks; None for a session without a group."""
        return self.key if isinstance(self.key, int) else None

    @property
    def is_complete(self) -> bool:
        """Open, and every member has a usable session."""
        return not self.closed and self.members is not None and len(self.slots) >= self.members

    @property
    def is_short(self) -> bool:
        """Open, and a session of every member ended and was scored, yet not all are usable: only another attempt can complete it."""
        if self.closed or self.members is None or self.waiting:
            return False
        return len(self.slots) < self.members <= len(self.ended)

    def settle(self, item: Item) -> None:
        """A waiting session got its reward."""
        del self.waiting[item.key]
        if item.member in self.slots:
            self.spare.append(item)
        else:
            self.slots[item.member] = item

    def chosen(self) -> list[Item]:
        """The sessions in the slots, in the order of members."""
        return [self.slots[member] for member in sorted(self.slots)]

    def give_others(self) -> list[Item]:
        """The undecided sessions without a slot, handed over to be dropped."""
        others = [*self.spare, *self.waiting.values()]
        self.spare, self.waiting = [], {}
        return others


class Deadlines:
    """Which groups are due, at a cost that does not depend on how many are not."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Group]] = []
        self._count = 0

    def set(self, group: Group, at: float) -> None:
        """`group` is due at `at` (seconds), whatever was said before, and at its `last_at` at the latest."""
        at = min(at, group.last_at)
        if at == group.deadline:
            return
        group.deadline = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, group))

    def due(self, now: float) -> list[Group]:
        """The open groups whose deadline has passed, each once, in the order of their deadlines."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            at, _, group = heapq.heappop(self._heap)
            if not group.closed and at == group.deadline:
                group.deadline = float("inf")
                found.append(group)
        return found
