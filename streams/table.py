"""A compacted topic as a live dict: the last record of each key, and where it stands.

Invariant: after `update`, the table equals the fold "last record of each key wins" over everything below `position`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from schemas.record import Record
from schemas.topics import Topic
from streams.codec import Entry
from streams.log import Log, LogReader

PARTITION = 0
"""Tables have one partition: one order for all keys."""


class Table:
    """Made by `open_table`. `rows` maps the record's key to its last entry."""

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self.rows: dict[bytes, Entry[Record]] = {}

    @property
    def position(self) -> int:
        """The next offset to be read: everything below is in the rows."""
        return self._reader.position(PARTITION)

    async def update(self, *, timeout_s: float) -> list[Entry[Record]]:
        """Take in what is new; answers it in log order. Empty after `timeout_s`."""
        return self._take(await self._reader.read(timeout_s=timeout_s))

    async def catch_up(self) -> list[Entry[Record]]:
        """Take in everything up to the end as it is now."""
        return self._take(await self._reader.read_to_end([PARTITION]))

    def _take(self, entries: list[Entry[Record]]) -> list[Entry[Record]]:
        for entry in entries:
            self.rows[entry.record.key() or b""] = entry
        return entries


@asynccontextmanager
async def open_table(log: Log, topic: Topic) -> AsyncIterator[Table]:
    """The table, caught up."""
    async with log.follow_all(topic) as reader:
        table = Table(reader)
        await table.catch_up()
        yield table
