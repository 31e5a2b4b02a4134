"""DeadLetter: bytes that could not be used, where they stood, and why. Nothing that was written is ever lost without a word."""

from __future__ import annotations

from schemas.record import Record


class DeadLetter(Record, frozen=True, kw_only=True):
    """A record at (`topic`, `partition`, `offset`) that `reader` could not use. `topic` is without the namespace."""

    topic: str
    partition: int
    offset: int
    reason: str
    reader: str
    original_key: bytes = b""
    original_value: bytes = b""
    original_headers: dict[str, bytes] = {}

    def key(self) -> bytes:
        """The topic."""
        return self.topic.encode()
