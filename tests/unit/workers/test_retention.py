"""When a place counts as near its end: by age, by size, and never where nothing can be lost."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from schemas.record import Record
from schemas.topics import SESSIONS
from streams.log import Log
from streams.memory import MemoryBroker
from streams.topics import ensure_topics
from tests.unit.workers.running import append
from tests.unit.workers.test_ledger import claim, open_
from workers.assembler.service import warn_of_retention
from workers.positions import Position, commit_positions
from workers.retention import Bounds, Margin, find_margins, margin

HOUR_MS = 3_600_000


def at(place: int, **more: Any) -> tuple[float, str] | None:
    """A partition of offsets 100 to 200, 10 hours of retention; a tenth of it is left for 120, a quarter for 150."""
    values = {
        "first": 100, "end": 200, "retention_ms": 10 * HOUR_MS, "retention_bytes": -1, "young": {0.25: 150, 0.1: 120, 0.02: 105}, **more,
    }  # fmt: skip
    found = margin("assembler", "sessions", 3, place, Bounds(**values))
    return None if found is None else (found.left, found.by)


@pytest.mark.parametrize(
    ("place", "left"), [(200, None), (150, None), (149, 0.25), (120, 0.25), (119, 0.1), (104, 0.02), (100, 0.02), (99, 0.0)]
)
def test_by_age(place: int, left: float | None) -> None:
    assert at(place) == (None if left is None else (left, "retention.ms"))


@pytest.mark.parametrize(("place", "left"), [(200, None), (125, None), (124, 0.25), (109, 0.1), (101, 0.02), (99, 0.0)])
def test_by_size_as_a_share_of_what_is_kept(place: int, left: float | None) -> None:
    found = at(place, retention_ms=-1, retention_bytes=1 << 30, young={})
    assert found == (None if left is None else (left, "retention.bytes"))


def test_what_retention_cannot_reach_is_never_near() -> None:
    assert at(100, retention_ms=-1, young={}) is None, "no limit at all"
    assert at(1, first=0, retention_ms=-1, retention_bytes=1 << 30, young={}) is None, "so far nothing had to go"
    assert at(200, young={0.25: 200, 0.1: 200, 0.02: 200}) is None, "all that is left is old, and nobody needs it"


def test_the_line_names_who_where_how_much_and_what_to_do() -> None:
    assert Margin("assembler", "sessions", 3, 119, 0.1, "retention.ms", 3600.0).line() == (
        "assembler stands at 119 in sessions 3: at most 10% of retention.ms is left (1.0 h); raise it, or see why assembler does not go on"
    )
    assert Margin("rollout", "sessions", 3, 9, 0.0, "retention.bytes", None).line() == (
        "rollout stands at 9 in sessions 3: retention has passed it, records are lost to it; see `seamlessflow audit verify`, "
        "and raise retention.bytes"
    )


@pytest.mark.parametrize(("left_s", "text"), [(60_480.0, "(16.8 h)"), (600.0, "(10 min)"), (30.0, "(30 s)")])
def test_how_long_is_left_is_said_in_the_unit_that_fits(left_s: float, text: str) -> None:
    assert text in Margin("rollout", "sessions", 3, 9, 0.1, "retention.ms", left_s).line()


async def stamped(*hours: int) -> Log:
    """A log of one partition whose records were written at these hours; retention 10 hours."""
    clock = [0.0]
    broker = MemoryBroker(lambda: clock[0])
    await ensure_topics(broker, "test.", 2, audit_retention_ms=10 * HOUR_MS)
    log = Log(broker, "test.", "test")
    records: list[Record] = [claim(7), *[open_() for _ in hours[1:]]]
    for hour, record in zip(hours, records, strict=True):
        clock[0] = hour * 3600.0
        append(log, SESSIONS, 0, record)
    return log


@pytest.mark.anyio
async def test_margins_of_a_real_partition() -> None:
    log = await stamped(0, 1, 2, 8)
    found = await find_margins(log, SESSIONS, {"assembler": {0: 1}, "rollout": {0: 3, 1: 0}}, now_ms=round(9.5 * HOUR_MS))
    assert found == [Margin("assembler", "sessions", 0, 1, 0.25, "retention.ms", 9000.0)]
    found = await find_margins(log, SESSIONS, {"assembler": {0: 1}}, now_ms=11 * HOUR_MS)
    assert [each.left for each in found] == [0.02]
    assert await find_margins(log, SESSIONS, {}, now_ms=11 * HOUR_MS) == []


@pytest.mark.anyio
async def test_the_assembler_says_it_for_its_own_positions_and_the_owners() -> None:
    log = await stamped(0, 1, 2, 8)  # hours of 1970: long past any retention
    await commit_positions(log, {0: Position(1, 7)}, "rollout")
    await commit_positions(log, {0: Position(4, 7)}, "assembler")
    with capture_logs() as said:
        await warn_of_retention(log, [0, 1])
    assert [(line["event"], line["partition"], line["left"]) for line in said] == [("retention comes near", 0, 0.02)]
    assert said[0]["warning"].startswith("rollout stands at 1 in sessions 0: ")
