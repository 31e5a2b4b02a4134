"""Into which partition a new session goes. Pure.

Invariants: all members of a group go to one partition, whichever gateway opens them, so that they share a prefix cache; sessions
without a group go round the partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32


def nobody_is_loaded(partition: int) -> bool:
    """The load of no partition is beyond the mark."""
    return False


def place(group: int | None, turn: int, partitions: int, is_loaded: Callable[[int], bool] = nobody_is_loaded) -> int:
    """A partition in `range(partitions)`. `turn` counts the sessions without a group.

    Where `is_loaded` says so, the next partition that is not loaded is taken; where all are, the first choice stands.
    """
    first = turn % partitions if group is None else crc32(b"%d" % group) % partitions
    for step in range(partitions):
        partition = (first + step) % partitions
        if not is_loaded(partition):
            return partition
    return first
