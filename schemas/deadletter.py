"""DeadLetter: bytes that could not be used, where they stood, and why. Nothing that was written is ever lost without a word.

Settlement: what an operator did about it. Letters are never changed: which of them are open is a fold of the topic.
"""

from __future__ import annotations

from typing import Literal

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


class Settlement(Record, frozen=True, kw_only=True):
    """The dead letter at offset `letter` needs nobody any more: its bytes were written again (in the same transaction), or given up.

    It settles every letter about the same bytes: several readers may have buried them.
    """

    letter: int
    how: Literal["redriven", "discarded"]
    reason: str = ""

    def key(self) -> bytes:
        """`settlement`."""
        return b"settlement"
