"""Identity is place: a session is the offset of its Open, a request the offset of its Request, an epoch the offset of its Grant.

Nobody chooses an identity, so none can collide, and whoever holds one knows where to read.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

_METADATA = re.compile(r"^epoch=(-?\d+);$")
_SESSION = re.compile(r"^(\d{1,6})-(\d{1,19})-([0-9a-z]{6})$")


class SessionId(NamedTuple):
    """A session as agents see it: `partition-offset-check`.

    `check` repeats six random characters of the Open, so that a guessed or mistyped id is refused instead of reaching
    somebody else's session.
    """

    partition: int
    offset: int
    check: str

    def __str__(self) -> str:
        return f"{self.partition}-{self.offset}-{self.check}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the text form.

        :raises ValueError: it is not a session id.
        """
        match = _SESSION.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not a session id: expected partition-offset-check, as POST /v1/sessions answers")
        return cls(int(match[1]), int(match[2]), match[3])


class Position(NamedTuple):
    """Where a reader of one partition of `sessions` may start, and the epoch in force there (R5).

    A Position is a fact of the log: true for ever, whoever reports it. A lower one is only slower.
    """

    offset: int
    epoch: int

    def metadata(self) -> str:
        """The text that is committed beside the offset. It ends in a semicolon because librdkafka hands it on without its length."""
        return f"epoch={self.epoch};"

    @classmethod
    def parse(cls, offset: int, metadata: str) -> Self:
        """Read a committed offset and its metadata.

        :raises ValueError: the metadata was not written by `metadata()`.
        """
        match = _METADATA.match(metadata)
        if match is None:
            raise ValueError(f"offset {offset} was committed with metadata {metadata!r}, not with an epoch")
        return cls(offset, int(match[1]))


START = Position(0, -1)
"""Where a partition that nobody claimed yet begins."""
