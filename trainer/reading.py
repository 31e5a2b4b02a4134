"""The feed at work: three log readers hand it what they read, the loop waits for what it decides.

Invariants: reading begins where the last Consumed says; while a batch waits, memory held for undecided trajectories is bounded in bytes
(without a waiting batch reading goes on, because only reading or a deadline can end a group). Deadlines count only time in which reading
was free: a group whose records stand in the log does not end because they could not be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import anyio
import structlog
from anyio import current_time

from schemas.topics import SCORES, TASKS, TRAJECTORIES, Topic
from schemas.training import Consumed, Drops
from streams.log import Log, LogReader
from trainer.feed.feed import Feed
from trainer.feed.plan import Batch
from trainer.feed.settings import FeedSettings

__all__ = ["FreeClock", "LiveFeed", "open_feed"]

READ_S = 5.0
READ_LIMIT = 250
"""Records per read: they are handed over in one go, which must not hold up the event loop for long (about 100 µs each)."""
TURN_S = 0.25
"""How late a deadline may be noticed."""
REPORT_S = 30.0
"""After waiting so long for a batch, say what it waits for."""

logger = structlog.get_logger()


class FreeClock:
    """Seconds in which no reader was held up."""

    def __init__(self) -> None:
        self._held = 0
        self._held_since = 0.0
        self._held_s = 0.0

    def now(self) -> float:
        """A steady clock that stands still within `held`."""
        return (self._held_since if self._held else current_time()) - self._held_s

    @contextmanager
    def held(self) -> Iterator[None]:
        """A reader is held up for the length of this context; several may be at the same time."""
        if not self._held:
            self._held_since = current_time()
        self._held += 1
        try:
            yield
        finally:
            self._held -= 1
            if not self._held:
                self._held_s += current_time() - self._held_since


class LiveFeed:
    """Made by `open_feed`. One task may wait in `next`."""

    def __init__(self, feed: Feed, held_bytes: int) -> None:
        self._feed = feed
        self._held_bytes = held_bytes
        self._clock = FreeClock()
        self._changed = anyio.Event()

    async def next(self, version: int) -> Batch | Drops:
        """Wait for the next decision.

        :raises LogError: a trajectory holds tokens of a version above `version`.
        """
        report_at = current_time() + REPORT_S
        while True:
            changed, now = self._changed, self._clock.now()
            self._feed.expire(now)
            decided = self._feed.batch(version, now) or self._feed.drops(now)
            if decided is not None:
                self._wake()
                return decided
            if current_time() >= report_at:
                report_at = current_time() + REPORT_S
                logger.info("waiting for a batch", **self._feed.state())
            with anyio.move_on_after(TURN_S):
                await changed.wait()

    def rest(self) -> list[Drops]:
        """All drops that were decided and not handed out, in the order in which they are to be written."""
        found = []
        while drops := self._feed.drops(self._clock.now(), at_once=True):
            found.append(drops)
        return found

    @property
    def ready_groups(self) -> int:
        """Complete groups that no batch holds."""
        return self._feed.ready_groups

    async def read(self, reader: LogReader, *, bounded: bool) -> None:
        """Hand over what `reader` gives; if `bounded`, only while there is room."""
        while True:
            if bounded:
                await self._room()
            entries, now = await reader.read(timeout_s=READ_S, limit=READ_LIMIT), self._clock.now()
            for entry in entries:
                self._feed.take(entry.partition, entry.offset, entry.record, now)
            self._wake()

    async def _room(self) -> None:
        if self._has_room():
            return
        with self._clock.held():
            while not self._has_room():
                with anyio.move_on_after(TURN_S):  # a batch that turns out too old makes room without a word
                    await self._changed.wait()

    def _has_room(self) -> bool:
        return not self._feed.has_batch or self._feed.held_bytes <= self._held_bytes

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


@asynccontextmanager
async def open_feed(log: Log, settings: FeedSettings, held_bytes: int, consumed: Consumed) -> AsyncIterator[LiveFeed]:
    """A feed that reads on from `consumed` for the length of a context.

    :raises RetentionPassed: records that it needs have expired.
    """
    live = LiveFeed(Feed(settings, consumed), held_bytes)
    trajectories = {mark.partition: mark.trajectory for mark in consumed.watermarks}
    scores = {mark.partition: mark.score for mark in consumed.watermarks}
    async with (
        log.follow(TASKS, await _offsets(log, TASKS, consumed.tasks)) as task_reader,
        log.follow(TRAJECTORIES, await _offsets(log, TRAJECTORIES, trajectories)) as trajectory_reader,
        log.follow(SCORES, await _offsets(log, SCORES, scores)) as score_reader,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(partial(live.read, task_reader, bounded=False))
        tasks.start_soon(partial(live.read, trajectory_reader, bounded=True))
        tasks.start_soon(partial(live.read, score_reader, bounded=True))
        yield live
        tasks.cancel_scope.cancel()


async def _offsets(log: Log, topic: Topic, known: Mapping[int, int]) -> dict[int, int]:
    """Where to begin in each partition: as known, else at the first record left."""
    starts = await log.broker.starts(await log.places(topic))
    return {place.partition: known.get(place.partition, offset) for place, offset in starts.items()}
