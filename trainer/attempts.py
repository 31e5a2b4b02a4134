"""How often a step was begun and came to nothing, counted outside of the trainer that it may kill (Poison).

A batch that ends its trainer, by an exception or by a crash, would be planned again by the next one, and end it, too. So each beginning of
a step is counted before anything is done, as the metadata of an offset that the group `trainer` commits for `training`; the offset is the
number of the step. When FATAL beginnings have come to nothing, the batch is dropped.

Invariants:
- the count of a step is at least the number of processes that its batches ended since one was given up: Drops with the reason REASON begin
  a new count in the same transaction;
- an end that came from outside (a stop, a broker that is away, another trainer) takes its beginning back, at once: the update that it
  waits for may take longer than the process has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import anyio
import structlog

from schemas.errors import BrokerUnavailable
from schemas.topics import TRAINING, TRAJECTORIES
from schemas.training import Dropped, Drops
from streams.broker import Place
from streams.codec import Entry
from streams.log import Log
from streams.service import Watch, came_from_outside
from trainer.feed.plan import Batch

__all__ = ["FATAL", "REASON", "Attempts", "drops_of"]

T = TypeVar("T")

GROUP = "trainer"
TRIES, PAUSE_S = 50, 0.2
TAKE_BACK_S = 5.0
FATAL = 4
"""Fewer than a supervisor allows in a row: the role goes on before it is given up."""
REASON = "poison"

logger = structlog.get_logger()


class _Beginning(NamedTuple):
    """One of `step`, after `given_up` batches were given up; `before`: beginnings of the same that came to nothing."""

    step: int
    given_up: int
    before: int


@dataclass(slots=True)
class Attempts:
    """The count in the log. One trainer writes it. `watch` is the role's."""

    log: Log
    watch: Watch = field(default_factory=Watch)
    _begun: _Beginning | None = None
    _is_through: bool = False

    async def begin(self, step: int, given_up: int) -> int:
        """A beginning of this step, of which so many batches were given up; answers how many beginnings came to nothing before.

        :raises BrokerUnavailable: it could not be counted.
        """
        before = await _patiently(lambda: self._stands(step, given_up))
        self._begun, self._is_through = _Beginning(step, given_up, before), False
        await _patiently(lambda: self._commit(step, given_up, before + 1))
        return before

    def through(self) -> None:
        """The batch did not end this process. No wait from now on is for it."""
        self._is_through = True

    async def end(self, end: BaseException | None) -> None:
        """What was begun came to its end: the Step or Drops stand, or this ended it."""
        if end is not None and came_from_outside(end):
            await self._take_back()
        self._begun = None

    async def take_back_when_stopped(self) -> None:
        """Wait for the stop of the process."""
        try:
            await anyio.sleep_forever()
        finally:
            await self._take_back()

    async def bury(self, batch: Batch) -> None:
        """A dead letter for each trajectory of a batch that is given up: which of them it was, nobody knows.

        :raises BrokerUnavailable: one could not be written.
        """
        for place, trajectory in zip(batch.plan.places, batch.trajectories, strict=True):
            entry = Entry(place.partition, place.offset, 0, trajectory)
            await self.log.bury_record(TRAJECTORIES, entry, f"{REASON}: {FATAL} trainers ended in a batch with it")

    async def _take_back(self) -> None:
        begun, self._begun = self._begun, None
        if begun is None or (self.watch.late and not self._is_through):
            return
        with anyio.move_on_after(TAKE_BACK_S, shield=True) as limit:
            stands = await _patiently(lambda: self._stands(begun.step, begun.given_up))
            if stands > begun.before:
                await _patiently(lambda: self._commit(begun.step, begun.given_up, stands - 1))
        if limit.cancelled_caught:
            logger.warning("a beginning could not be taken back", step=begun.step)

    @property
    def _place(self) -> Place:
        return self.log.place(TRAINING, 0)

    async def _stands(self, step: int, given_up: int) -> int:
        found = await self.log.broker.committed(self.log.group(GROUP), [self._place])
        offset, metadata = found.get(self._place, (-1, ""))
        of, _, count = metadata.partition(":")
        return int(count) if offset == step and of == str(given_up) and count.isdigit() else 0

    async def _commit(self, step: int, given_up: int, count: int) -> None:
        await self.log.broker.commit(self.log.group(GROUP), {self._place: (step, f"{given_up}:{count}")})


async def _patiently(call: Callable[[], Awaitable[T]]) -> T:
    """A broker that is away for a while ends no trainer: as for a commit to `training`."""
    for _ in range(TRIES):
        try:
            return await call()
        except BrokerUnavailable:
            await anyio.sleep(PAUSE_S)
    return await call()


def drops_of(batch: Batch) -> Drops:
    """What stands in the log instead of the Step of a batch that is given up: every session and group of it is decided."""
    given_up = [
        Dropped(place=place, reason=REASON, group=trajectory.group)
        for place, trajectory in zip(batch.plan.places, batch.trajectories, strict=True)
    ]
    return Drops(drops=[*batch.drops, *given_up], groups=[*batch.groups_dropped, *batch.groups_trained], consumed=batch.consumed)
