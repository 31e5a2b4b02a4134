"""How near retention is to what a reader still needs: a warning before records are gone that nobody has read.

A reader's *place* in a partition is its Position or committed offset. All below it is done with; what it needs begins there. Retention
takes whole segments from the front, by age (`retention.ms`) or by size (`retention.bytes`), and asks nobody.

Invariants: a place at the end needs nothing and is never near; a partition that retention cannot reach is never near; what is told to be
left is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from schemas.topics import Topic
from streams.log import Log

__all__ = ["MARKS", "Bounds", "Margin", "find_margins", "margin"]

MARKS = (0.25, 0.1, 0.02)
"""Shares of the retention that are left. Told is the smallest that holds; above the first nothing is said."""

KEEP = -1
"""Kafka's word for no limit."""


class Bounds(NamedTuple):
    """One partition and its limits. `young` maps each mark to the first offset of which more than that share of `retention_ms` is left.

    `retention_ms` and `retention_bytes` are −1 where there is no limit.
    """

    first: int
    end: int
    retention_ms: int
    retention_bytes: int
    young: Mapping[float, int]


class Margin(NamedTuple):
    """`reader` stands at `place` of a partition, and at most `left` (a share) of the limit `by` is left; 0: retention has passed it."""

    reader: str
    topic: str
    partition: int
    place: int
    left: float
    by: str
    left_s: float | None

    def line(self) -> str:
        """For people: what is near, and what to do."""
        where = f"{self.reader} stands at {self.place} in {self.topic} {self.partition}"
        if not self.left:
            return f"{where}: retention has passed it, records are lost to it; see `seamlessflow audit verify`, and raise {self.by}"
        time = "" if self.left_s is None else f" ({_spell(self.left_s)})"
        return f"{where}: at most {self.left:.0%} of {self.by} is left{time}; raise it, or see why {self.reader} does not go on"


def _spell(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def margin(reader: str, topic: str, partition: int, place: int, bounds: Bounds) -> Margin | None:
    """How near retention is to a place; None where it is not near. Pure."""
    if place >= bounds.end:
        return None
    limit = "retention.bytes" if bounds.retention_ms == KEEP else "retention.ms"
    if place < bounds.first:
        return Margin(reader, topic, partition, place, 0.0, limit, None)
    by_time = [mark for mark in MARKS if bounds.retention_ms != KEEP and place < bounds.young[mark]]
    if by_time:
        return Margin(reader, topic, partition, place, by_time[-1], "retention.ms", by_time[-1] * bounds.retention_ms / 1000)
    share = (place - bounds.first) / (bounds.end - bounds.first)
    by_size = [mark for mark in MARKS if bounds.retention_bytes != KEEP and bounds.first > 0 and share < mark]
    return Margin(reader, topic, partition, place, by_size[-1], "retention.bytes", None) if by_size else None


async def find_margins(log: Log, topic: Topic, readers: Mapping[str, Mapping[int, int]], now_ms: int) -> list[Margin]:
    """The places that retention is near to. `readers`: by reader, partition → place. `now_ms`: milliseconds since 1970."""
    bounds = await _bounds(log, topic, {partition for places in readers.values() for partition in places}, now_ms)
    found = [
        margin(reader, topic.name, partition, place, bounds[partition])
        for reader, places in readers.items() for partition, place in sorted(places.items())
    ]  # fmt: skip
    return [each for each in found if each is not None]


async def _bounds(log: Log, topic: Topic, partitions: Iterable[int], now_ms: int) -> dict[int, Bounds]:
    places = [log.place(topic, partition) for partition in sorted(partitions)]
    if not places:
        return {}
    config = (await log.broker.describe_topics([log.name(topic)]))[log.name(topic)].config
    retention_ms, retention_bytes = int(config.get("retention.ms", KEEP)), int(config.get("retention.bytes", KEEP))
    firsts, ends = await log.broker.starts(places), await log.broker.ends(places)
    young = {
        mark: await log.broker.offsets_at(places, now_ms - round((1 - mark) * retention_ms)) for mark in MARKS if retention_ms != KEEP
    }
    return {
        place.partition: Bounds(
            firsts[place], ends[place], retention_ms, retention_bytes, {mark: offsets[place] for mark, offsets in young.items()}
        )
        for place in places
    }
