"""One partition in memory: entries by offset, transactions, retention. No I/O, no await.

Invariants: offsets grow by one and are never used twice; a marker takes an offset that no reader sees; a `committed` reader's end is the
first offset of the oldest open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from schemas.errors import RetentionPassed, TopicMismatch
from streams.broker import Message, Outgoing, Place


@dataclass(eq=False, slots=True)
class Write:
    """The state of one transaction, shared by its entries in all partitions."""

    state: Literal["open", "committed", "aborted"] = "open"


@dataclass(frozen=True, slots=True)
class Entry:
    """What takes an offset: a message, or a marker (None) that no reader sees."""

    message: Message | None
    write: Write | None = None

    def visible(self, committed: bool) -> bool:
        """Whether a reader of this isolation sees it, now or at all."""
        return self.message is not None and (not committed or self.write is None or self.write.state == "committed")


@dataclass(slots=True)
class Log:
    """One partition. `start` is the first offset left."""

    place: Place
    start: int = 0
    entries: list[Entry] = field(default_factory=list)
    open_since: dict[Write, int] = field(default_factory=dict)

    def end(self, committed: bool) -> int:
        """The next offset; for a `committed` reader the first offset of the oldest open transaction, if there is one."""
        last = self.start + len(self.entries)
        return min(self.open_since.values(), default=last) if committed else last

    def offset_at(self, timestamp_ms: int) -> int:
        """The first offset of a message that was stamped then or later, else the next offset."""
        stamped = (entry.message for entry in self.entries if entry.message is not None and entry.message.timestamp_ms >= timestamp_ms)
        found = next(stamped, None)
        return self.end(committed=False) if found is None else found.offset

    def append(self, sent: Outgoing, timestamp_ms: int, write: Write | None = None) -> int:
        """Put a message at the end; answers its offset."""
        offset = self.end(committed=False)
        message = Message(sent.topic, sent.partition, offset, timestamp_ms, sent.key, sent.value, sent.headers)
        self.entries.append(Entry(message, write))
        if write is not None:
            self.open_since.setdefault(write, offset)
        return offset

    def mark(self, write: Write) -> None:
        """End a transaction here: a marker, if it wrote here at all."""
        if self.open_since.pop(write, None) is not None:
            self.entries.append(Entry(None))

    def truncate(self, offset: int) -> None:
        """Everything before `offset` is gone."""
        dropped = min(max(offset - self.start, 0), len(self.entries))
        del self.entries[:dropped]
        self.start += dropped

    def read(self, position: int, limit: int, committed: bool) -> tuple[list[Message], int]:
        """Up to `limit` messages from `position`, and the position after them."""
        end, found = self.end(committed) if self.open_since else self.start + len(self.entries), list[Message]()
        while position < end and len(found) < limit:
            entry = self.entries[position - self.start]
            if entry.message is not None and entry.visible(committed):
                found.append(entry.message)
            position += 1
        return found, position

    def has_news(self, position: int) -> bool:
        """Whether anything was appended at `position` or behind it.

        :raises LogError: there is no such position (`check_range`).
        """
        if position == self.start + len(self.entries):
            return False  # most of the time
        self.check_range(position)
        return True

    def check_range(self, position: int) -> None:
        """Whether there is such a position.

        :raises RetentionPassed: it lies before the first record left.
        :raises TopicMismatch: it lies beyond the end: this is not the topic that the position was taken from.
        """
        if position < self.start:
            raise RetentionPassed(f"{self.place.topic}/{self.place.partition}: position {position}, the first record left is {self.start}")
        if position > self.start + len(self.entries):
            raise TopicMismatch(f"{self.place.topic}/{self.place.partition}: position {position} lies beyond the end")
