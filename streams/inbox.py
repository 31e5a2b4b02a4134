"""What a reader has fetched and not yet handed on as records.

Invariants: a message leaves in the turn of the event loop in which its record is returned, so cancelling a read loses none, whatever it
waited for (a blob, a dead letter); what one read brings in from the blob store is bounded by READ_BYTES, or is one record: a backlog of
large records is never in memory at once.
"""

from __future__ import annotations

from schemas.errors import LogError
from streams.blobs import has_reference, reference_in
from streams.broker import Message

__all__ = ["READ_BYTES", "Inbox"]

READ_BYTES = 16 << 20


class Inbox:
    """Messages in the order of their fetching. One task takes; any may forget some meanwhile."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._generation = 0

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, messages: list[Message]) -> None:
        """Add what was fetched."""
        self._messages = messages if not self._messages else [*self._messages, *messages]

    def next(self, limit: int) -> list[Message]:
        """The first messages, at most `limit`, whose blobs together are at most READ_BYTES, or one. They stay until `passed`."""
        brought_bytes = 0
        for count, message in enumerate(self._messages[:limit]):
            brought_bytes += _blob_bytes(message)
            if count and brought_bytes > READ_BYTES:
                return self._messages[:count]
        return self._messages[:limit]

    def passed(self, messages: list[Message]) -> bool:
        """What `next` gave is handed on. False: some of it was forgotten meanwhile, and all that is left comes again."""
        if len(messages) > len(self._messages) or any(ours is not each for ours, each in zip(self._messages, messages, strict=False)):
            return False
        self._messages = self._messages[len(messages) :]
        return True

    def first(self, partition: int) -> int | None:
        """The lowest offset of a partition that was not handed on; None where there is none."""
        return next((message.offset for message in self._messages if message.partition == partition), None)

    def forget(self, partition: int) -> None:
        """Drop what was fetched of a partition."""
        self._messages = [message for message in self._messages if message.partition != partition]

    def begin(self, generation: int) -> None:
        """Drop what was fetched under another assignment: whoever holds its partitions now reads it again."""
        if generation != self._generation:
            self._generation, self._messages = generation, []


def _blob_bytes(message: Message) -> int:
    """Zero, too, for a reference that cannot be read: decoding it says why."""
    if not has_reference(message):
        return 0
    try:
        return reference_in(message).bytes
    except LogError:
        return 0
