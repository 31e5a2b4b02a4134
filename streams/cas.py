"""Compare and set: the only way to write `training`, `grants` and `tasks`.

Start a transactional producer (which fences the older one) → read the topic to its end, committed, all partitions → check that nothing
stands there beyond what this writer built upon, or that its own record does (nonce): then it was committed → send → await every send →
commit. Both halves are needed. Fencing alone would let a woken zombie fence its successor and write on; the check alone would let two
writers pass it side by side.

Invariant: every committed record was built upon the committed record before it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio

from schemas.errors import BrokerUnavailable, OutcomeUnknown, Superseded
from schemas.record import Record
from schemas.topics import Topic
from streams.broker import Outgoing
from streams.codec import Entry
from streams.failpoint import failpoint
from streams.log import Log, LogReader

PAUSE_S = 0.2
ATTEMPTS = 50


class CasLog:
    """One topic as its single writer sees it: all that stands, and the right to add. Made by `open_cas`.

    `history` are the committed records read so far, oldest first in each partition; a role folds them once and goes on from there.
    """

    def __init__(self, log: Log, topic: Topic, reader: LogReader, partitions: Sequence[int]) -> None:
        self._log, self._topic, self._reader, self._partitions = log, topic, reader, partitions
        self._id = log.group(f"cas.{topic.name}")
        self._last_nonce = b""
        self._unjudged: list[Entry[Record]] = []
        """Read by an attempt that failed before its check: the next attempt's reader starts behind them."""
        self.history: list[Entry[Record]] = []

    async def write(self, records: Sequence[tuple[int, Record]]) -> list[int]:
        """Commit these (partition, record) together; answers their offsets.

        :raises Superseded: another writer added something: this process's view is out of date.
        :raises BrokerUnavailable: the outcome stayed unknown for ATTEMPTS tries.
        :raises BlobStoreUnavailable: a record is large, and the blob store does not answer.
        """
        nonce = secrets.token_bytes(16)
        messages = [await self._log.outgoing(self._topic, partition, record, nonce=nonce) for partition, record in records]
        for _ in range(ATTEMPTS):
            try:
                return await self._attempt(nonce, messages)
            except (OutcomeUnknown, BrokerUnavailable):
                await anyio.sleep(PAUSE_S)
        raise BrokerUnavailable(f"could not commit to {self._topic.name}")

    async def require_newest(self) -> None:
        """Make sure that nothing was added to what this writer built upon.

        :raises Superseded: another writer added something.
        :raises BrokerUnavailable: the topic cannot be read to its end.
        """
        self._require_own(await self._news())

    def _require_own(self, found: Sequence[Entry[Record]]) -> None:
        if found:
            raise Superseded(f"another writer committed to {self._topic.name} at offset {found[-1].offset}")

    async def _attempt(self, nonce: bytes, messages: Sequence[Outgoing]) -> list[int]:
        async with self._log.broker.transaction(self._id) as transaction:
            failpoint("cas.after_init")
            found = await self._news()
            if found and all(entry.nonce == nonce for entry in found):
                self._last_nonce = nonce
                return [entry.offset for entry in found]
            self._require_own(found)
            try:
                offsets = await transaction.commit(messages)
            except Superseded as error:  # only fenced: whether somebody wrote is for the next attempt's check to say
                raise OutcomeUnknown(str(error)) from error
        failpoint("cas.after_commit")
        self._last_nonce = nonce
        return offsets

    async def _news(self) -> list[Entry[Record]]:
        await self._reader.read_to_end(self._partitions, into=self._unjudged)
        entries, self._unjudged = self._unjudged, []
        return [entry for entry in entries if entry.nonce is None or entry.nonce != self._last_nonce]


@asynccontextmanager
async def open_cas(log: Log, topic: Topic) -> AsyncIterator[CasLog]:
    """Read a topic from its first record to its end, and be ready to write it."""
    async with log.follow_all(topic) as reader:
        partitions = [place.partition for place in await log.places(topic)]
        cas = CasLog(log, topic, reader, partitions)
        cas.history = await reader.read_to_end(partitions)
        yield cas
