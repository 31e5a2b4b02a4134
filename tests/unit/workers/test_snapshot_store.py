"""Where a reader begins when there is a snapshot, and when there is none to be had: never anywhere wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from schemas.identity import Position
from schemas.record import Record
from schemas.session import Close
from schemas.topics import SESSIONS
from streams.log import Log
from tests.unit.workers.running import append, memory_log
from tests.unit.workers.test_ledger import claim, fold, open_, request, span
from workers.ledger import Ledger
from workers.positions import ROLLOUT_GROUP, Start, commit_positions, find_starts, shorten
from workers.snapshot import Snapshot, digest, snapshot_of
from workers.snapshot_store import SnapshotStore

pytestmark = pytest.mark.anyio

LOG: list[Record] = [claim(7), open_(), request(1), span(1, 2, 7, 0, (10, 11)), span(1, 2, 7, 2, (12,)), claim(9)]
CUT = 4


async def written() -> Log:
    """LOG in partition 1, with a Position at its session."""
    log = await memory_log()
    for record in LOG:
        append(log, SESSIONS, 1, record)
    await commit_positions(log, {1: Position(1, 7)})
    return log


def taken(log: Log, cut: int = CUT) -> Snapshot:
    return snapshot_of(fold(*LOG[:cut]), log.name(SESSIONS), 1)


def store_of(log: Log, folder: Path) -> SnapshotStore:
    return SnapshotStore(log, str(folder), ROLLOUT_GROUP)


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.snapshot"))


async def start_of(log: Log, folder: Path) -> Start:
    return (await find_starts(log, [1], {}, store=store_of(log, folder)))[1]


def rest(ledger: Ledger) -> list[int]:
    """The accepted tokens after the rest of LOG."""
    return fold(*LOG[ledger.next :], ledger=ledger).sessions[1].requests[2].token_ids()


async def test_a_reader_begins_with_the_newest_snapshot(tmp_path: Path) -> None:
    log = await written()
    store = store_of(log, tmp_path)
    for cut in (2, 3, CUT):
        assert await store.keep(taken(log, cut)) is not None
    start = await start_of(log, tmp_path)
    assert (start.position, start.floor) == (Position(CUT, 7), None)
    ledger = start.ledger()
    assert ledger.sessions[1].requests[2].token_ids() == [10, 11]
    assert rest(ledger) == [10, 11, 12]
    assert ledger.position() == Position(1, 7), "the Position stays at the oldest open session"
    assert len(files_in(tmp_path)) == 2, "the newest, and one that a reader may have been told of"


async def test_a_topic_made_anew_under_an_old_folder_has_its_snapshots(tmp_path: Path) -> None:
    log = await written()
    for cut in (CUT + 1, CUT + 2):
        await store_of(log, tmp_path).keep(taken(log, cut))
    anew = await written()
    await store_of(anew, tmp_path).keep(taken(anew))
    assert (await start_of(anew, tmp_path)).position == Position(CUT, 7)
    assert [path.name[:20] for path in files_in(tmp_path)] == [f"{CUT:020d}"], "files of the old log are of no use to anybody"


async def test_owners_and_assemblers_have_their_own(tmp_path: Path) -> None:
    log = await written()
    await store_of(log, tmp_path).keep(taken(log))
    assert await SnapshotStore(log, str(tmp_path), "assembler").find([1]) == {}


@pytest.mark.parametrize("harm", ["missing", "torn", "a bit", "another form", "another partition", "foreign text", "beyond the end"])
async def test_without_a_good_snapshot_the_position_serves(tmp_path: Path, harm: str) -> None:
    log = await written()
    store = store_of(log, tmp_path)
    await store.keep(taken(log))
    place, group = log.place(SESSIONS, 1), "test.rollout.snapshots"
    file = files_in(tmp_path)[0]
    content = file.read_bytes()
    spoilt = {
        "torn": content[:-3], "a bit": content[:-1] + bytes([content[-1] ^ 1]), "another form": content.replace(b"ledger 1", b"ledger 0"),
        "another partition": content.replace(b"\xa9partition\x01", b"\xa9partition\x02"),
    }  # fmt: skip
    if harm == "missing":
        file.unlink()
    elif harm == "foreign text":
        await log.broker.commit(group, {place: (CUT, "epoch=7;")})
    elif harm == "beyond the end":
        await store.keep(snapshot_of(fold(*LOG, *[open_()] * 5), log.name(SESSIONS), 1))
    else:
        file.write_bytes(spoilt[harm])
        announced = f"sha256={digest(spoilt[harm])} bytes={len(spoilt[harm])} file={file.name};"
        if harm.startswith("another"):  # whole, as its writer meant it
            await log.broker.commit(group, {place: (CUT, announced)})
    start = await start_of(log, tmp_path)
    assert start == Start(Position(1, 7), None, None)
    ledger = start.ledger()
    assert fold(*LOG[1:], ledger=ledger).sessions[1].requests[2].token_ids() == [10, 11, 12]


async def test_a_store_that_is_away_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    log = await written()
    (tmp_path / "file").write_text("no folder")
    for url in (str(tmp_path / "file"), "nosuchscheme://bucket"):
        with capture_logs() as said:
            assert await SnapshotStore(log, url, ROLLOUT_GROUP).keep(taken(log)) is None
        assert [(line["log_level"], line["partition"]) for line in said] == [("warning", 1)]
        assert (await find_starts(log, [1], {}, store=SnapshotStore(log, url, ROLLOUT_GROUP)))[1].position == Position(1, 7)


async def test_any_store_that_fsspec_knows_will_do() -> None:
    log = await written()
    store = SnapshotStore(log, "memory://snapshots-of-a-test", ROLLOUT_GROUP)
    assert await store.keep(taken(log)) is not None
    assert (await store.find([1]))[1] == taken(log)


async def test_without_an_address_nothing_is_looked_for() -> None:
    log = await written()
    assert await SnapshotStore(log, "", ROLLOUT_GROUP).find([1]) == {}


@pytest.mark.parametrize(
    ("start", "end", "is_used"),
    [
        (Start(Position(3, 7), None), 9, True),
        (Start(Position(4, 7), None), 9, False),
        (Start(Position(3, 7), None), 3, False),
        (Start(Position(3, -1), 7), 9, False),
    ],
    ids=["saves", "the Position is as far", "beyond the end of the log", "every Position is gone: all readers wait for a reset"],
)
def test_when_a_snapshot_is_used(start: Start, end: int, is_used: bool) -> None:
    snapshot = snapshot_of(fold(*LOG[:CUT]), "test.sessions", 1)
    assert shorten(start, snapshot, end) == (Start(Position(CUT, 7), None, snapshot) if is_used else start)


async def test_sessions_that_had_ended_before_the_snapshot_stay_ended(tmp_path: Path) -> None:
    log = await memory_log()
    records = [claim(7), open_(), open_(), request(1), Close(session=1, nonce=b"c")]
    for record in records:
        append(log, SESSIONS, 1, record)
    await store_of(log, tmp_path).keep(snapshot_of(fold(*records), log.name(SESSIONS), 1))
    ledger = (await start_of(log, tmp_path)).ledger()
    assert list(ledger.sessions) == [2]
    assert ledger.apply(5, span(1, 3, 7, 0, (1,))) is None
