"""Which readers retention comes near to, for `status`: committed offsets of every group, and the trainer's watermarks.

Only the topics that expire are looked at: `tasks` and `training` are kept, `grants` and `nodes` are compacted.
"""

from __future__ import annotations

from collections.abc import Mapping

from schemas.topics import SCORES, SESSIONS, TRAJECTORIES, Topic
from schemas.training import Consumed
from streams.log import Log
from workers.retention import Margin, find_margins

__all__ = ["gather_margins"]

READERS: Mapping[Topic, tuple[str, ...]] = {SESSIONS: ("rollout", "assembler"), TRAJECTORIES: ("reward",), SCORES: ()}
"""Groups that commit offsets of each topic."""


async def gather_margins(log: Log, consumed: Consumed | None, now_ms: int) -> list[Margin]:
    """The places that retention is near to, by topic. `consumed`: what the trainer said last, None where there is no trainer yet."""
    found: list[Margin] = []
    for topic, groups in READERS.items():
        places = await log.places(topic)
        readers = {}
        for group in groups:
            committed = await log.broker.committed(log.group(group), places)
            readers[group] = {place.partition: offset for place, (offset, _) in committed.items()}
        if consumed is not None and topic is not SESSIONS:
            readers["trainer"] = _watermarks(topic, consumed)
        found += await find_margins(log, topic, readers, now_ms)
    return found


def _watermarks(topic: Topic, consumed: Consumed) -> dict[int, int]:
    return {mark.partition: mark.trajectory if topic is TRAJECTORIES else mark.score for mark in consumed.watermarks}
