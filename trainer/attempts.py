"""How often a step was begun, counted outside of the trainer that it may kill (Poison).

A batch that ends its trainer, by an exception or by a crash, would be planned again by the next one, and end it, too. So each beginning of
a step is counted before anything is done, as the metadata of an offset that the group `trainer` commits for `training`; the offset is the
number of the step. When FATAL beginnings have come to nothing, the batch is dropped.

Invariant: the count of a step is at least the number of processes that ended in it, whatever ended them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from schemas.errors import BrokerUnavailable
from schemas.topics import TRAINING, TRAJECTORIES
from schemas.training import Dropped, Drops
from streams.codec import Entry
from streams.log import Log
from trainer.feed.plan import Batch

__all__ = ["FATAL", "Attempts", "drops_of"]

T = TypeVar("T")

GROUP = "trainer"
TRIES, PAUSE_S = 50, 0.2
FATAL = 4
"""Fewer than a supervisor allows in a row: the role goes on before it is given up."""
REASON = "poison"


class Attempts:
    """The count in the log. One trainer writes it."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._place = log.place(TRAINING, 0)

    async def begin(self, step: int) -> int:
        """A beginning of this step; answers how many came before it.

        :raises BrokerUnavailable: it could not be counted.
        """
        before = await _patiently(lambda: self._before(step))
        await _patiently(lambda: self._commit(step, before + 1))
        return before

    async def forget(self, step: int) -> None:
        """The batch of this step was dropped: the next one begins anew.

        :raises BrokerUnavailable: that could not be written down.
        """
        await _patiently(lambda: self._commit(step, 0))

    async def bury(self, batch: Batch) -> None:
        """A dead letter for each trajectory of a batch that is given up: which of them it was, nobody knows.

        :raises BrokerUnavailable: one could not be written.
        """
        for place, trajectory in zip(batch.plan.places, batch.trajectories, strict=True):
            entry = Entry(place.partition, place.offset, 0, trajectory)
            await self._log.bury_record(TRAJECTORIES, entry, f"{REASON}: {FATAL} trainers ended in a batch with it")

    async def _before(self, step: int) -> int:
        found = await self._log.broker.committed(self._log.group(GROUP), [self._place])
        offset, metadata = found.get(self._place, (-1, ""))
        return int(metadata) if offset == step and metadata.isdigit() else 0

    async def _commit(self, step: int, count: int) -> None:
        await self._log.broker.commit(self._log.group(GROUP), {self._place: (step, str(count))})


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
