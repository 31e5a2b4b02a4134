"""How far each log is decided: Consumed as a live object (R6).

Invariants, after every call:
- all trajectories below a watermark are decided, `close` is the greatest Close among them, `decided` are exactly the decided ones above
  (a dropped one counts from the moment when its drop is handed out);
- no score below the score watermark is of an undecided trajectory, no Task below the tasks watermark of an undecided group;
- watermarks only grow, and an object made from a snapshot ends, after reading on from it, in the state of the one that never stopped.

Each offset enters a queue once and leaves it once, so the cost of a record does not depend on how many wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from schemas.training import Watermark

__all__ = ["DecidedGroups", "PartitionProgress", "TaskProgress"]


class PartitionProgress:
    """One partition of `trajectories` and of `scores`. `undecided` are the offsets of trajectories that were read and are not decided."""

    def __init__(self, mark: Watermark) -> None:
        self.partition = mark.partition
        self.next = mark.trajectory
        self.next_score = mark.score
        self.undecided: set[int] = set()
        self._close = mark.close
        self._dropped: set[int] = set()  # their drops are not handed out yet
        self._passed = set(mark.decided)
        self._read: deque[tuple[int, int]] = deque()  # (offset, greatest Close below it)
        self._scores: deque[tuple[int, int]] = deque()  # (offset, the trajectory's offset)

    def take(self, offset: int, close: int) -> bool:
        """Read one trajectory. False: it was read or decided before, or repeats a session (its Close is not above the last one)."""
        if offset < self.next:
            return False
        self._read.append((offset, self._close))
        self.next = offset + 1
        is_new = close > self._close and offset not in self._passed
        self._passed.discard(offset)
        self._close = max(self._close, close)
        if is_new:
            self.undecided.add(offset)
        return is_new

    def take_score(self, offset: int, trajectory: int) -> bool:
        """Read one score. False: it was read before, or its trajectory is decided."""
        if offset < self.next_score:
            return False
        self.next_score = offset + 1
        if self._is_passed(trajectory):
            return False
        self._scores.append((offset, trajectory))
        return not self.is_decided(trajectory)

    def decide(self, offset: int) -> None:
        """An undecided trajectory is trained, dropped, or none that training ever decides (`eval`).

        :raises KeyError: it is not undecided: a second decision would train or drop it twice.
        """
        self.undecided.remove(offset)

    def drop(self, offset: int) -> None:
        """As `decide`, but the watermark passes it only after `hand_out`."""
        self.decide(offset)
        self._dropped.add(offset)

    def hand_out(self, offset: int) -> None:
        """The drop of this trajectory is in the record that is being made."""
        self._dropped.remove(offset)

    def is_decided(self, offset: int) -> bool:
        """Whether nothing can change for the trajectory at this offset, read or not."""
        return offset in self._passed or (offset < self.next and offset not in self.undecided)

    def _is_passed(self, offset: int) -> bool:
        """Whether a restart need not read the trajectory at this offset."""
        return self.is_decided(offset) and offset not in self._dropped

    def watermark(self) -> Watermark:
        """The state as a record."""
        while self._read and self._is_passed(self._read[0][0]):
            self._read.popleft()
        while self._scores and self._is_passed(self._scores[0][1]):
            self._scores.popleft()
        low, close = self._read[0] if self._read else (self.next, self._close)
        above = sorted([offset for offset, _ in self._read if self._is_passed(offset)] + list(self._passed))
        score = self._scores[0][0] if self._scores else self.next_score
        return Watermark(partition=self.partition, trajectory=low, close=close, decided=above, score=score)


class DecidedGroups:
    """Numbers of decided groups: all smaller than `below`, and `above`."""

    def __init__(self, below: int = 0, above: Iterable[int] = ()) -> None:
        self.below = below
        self.above = set(above)

    def __contains__(self, number: int) -> bool:
        return number < self.below or number in self.above

    def add(self, number: int) -> None:
        """The group is decided; again is harmless."""
        if number >= self.below:
            self.above.add(number)
        while self.below in self.above:
            self.above.remove(self.below)
            self.below += 1


class TaskProgress:
    """One partition of `tasks`. A restart reads the Tasks of undecided groups again, because they say how many members there are."""

    def __init__(self, offset: int = 0) -> None:
        self.next = offset
        self._read: deque[tuple[int, int]] = deque()  # (offset, group)

    def take(self, offset: int, group: int) -> bool:
        """Read one Task. False: it was read before."""
        if offset < self.next:
            return False
        self.next = offset + 1
        self._read.append((offset, group))
        return True

    def watermark(self, decided: DecidedGroups) -> int:
        """Where a restart begins: the first Task of an undecided group, or the next one."""
        while self._read and self._read[0][1] in decided:
            self._read.popleft()
        return self._read[0][0] if self._read else self.next
