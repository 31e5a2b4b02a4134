"""Where an assembler begins that retention has passed: as early as the log says for certain what counts, and no earlier."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import BrokerUnavailable
from schemas.grant import Grant
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Claim
from schemas.topics import GRANTS, SESSIONS, TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.log import Log
from streams.memory import MemoryBroker
from tests.unit.workers.assembler.session_log import claim, close, open_, request, span
from tests.unit.workers.running import append, memory_log, records, running, until
from tests.unit.workers.test_ledger import fold, image, logs
from workers.assembler import start as start_module
from workers.assembler.service import role
from workers.assembler.settings import AssemblerSettings
from workers.assembler.start import earliest, find_starts
from workers.ledger import Ledger
from workers.positions import Start

pytestmark = pytest.mark.anyio

QUICK = AssemblerSettings(commit_s=0.01)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ([], Position(10, 7)),
        ([(12, 3)], Position(10, 7)),  # a zombie's: 7 was in force before it
        ([(12, 3), (15, 7), (17, 7), (18, 5)], Position(16, 7)),
    ],
    ids=["no Claim is left", "only lower ones", "it came with the first one"],
)
def test_the_epoch_at_the_owners_position_says_from_where_on_the_log_can_be_folded(
    claims: list[tuple[int, int]], expected: Position
) -> None:
    assert earliest(10, Position(20, 7), claims) == expected


@settings(max_examples=200, deadline=None)
@given(logs(), st.data())
def test_a_fold_from_there_agrees_with_the_whole_one_on_what_opened_since(records_: list[Record], data: st.DataObject) -> None:
    resets = data.draw(st.sets(st.integers(0, 40)))
    log = [claim(each.epoch, reset=n in resets) if isinstance(each, Claim) else each for n, each in enumerate(records_)]
    before = fold(*log[: data.draw(st.integers(0, len(log)))])
    for session in [session for session in before.sessions.values() if not session.is_open]:
        before.forget(session)
    owners = before.position()
    first = data.draw(st.integers(0, owners.offset))
    claims = [(offset, each.epoch) for offset, each in enumerate(log[: owners.offset]) if offset >= first and isinstance(each, Claim)]
    begin = earliest(first, owners, claims)
    assert first <= begin.offset <= owners.offset
    late, whole = fold(*log[begin.offset :], ledger=Ledger(begin)), fold(*log)
    assert image(late, begin.offset) == image(whole, begin.offset)
    assert late.epoch == whole.epoch


async def passed(*log_records: Record, first: int, owners: Position, own: Position | None = None) -> Log:
    """A log whose records below `first` are gone; the owners are at its end."""
    log = await memory_log(partitions=1)
    for record in log_records:
        append(log, SESSIONS, 0, record)
    place = log.place(SESSIONS, 0)
    await log.broker.commit(log.group("rollout"), {place: (owners.offset, owners.metadata())})
    if own is not None:
        await log.broker.commit(log.group("assembler"), {place: (own.offset, own.metadata())})
    assert isinstance(log.broker, MemoryBroker)
    log.broker.truncate(place, first)
    return log


def assembled(log: Log) -> list[tuple[int, int]]:
    """Session and number of requests of each Trajectory."""
    return [(each.session, len(each.nodes)) for each in records(log, TRAJECTORIES, Trajectory)]


async def test_one_that_starts_long_after_a_reset_assembles_all_that_ended_since() -> None:
    before = [claim(1), open_(), close(1)]
    since = [claim(7, reset=True), open_(), request(4, (1,)), span(4, 5, 0, (9,), (-1.0,), 0, "stop"), close(4), open_(), close(8)]
    log = await passed(*before, *since, first=2, owners=Position(10, 7))
    async with running(role(QUICK), log):
        await until(lambda: len(assembled(log)) == 2, "both sessions of the reset")
    assert assembled(log) == [(4, 1), (8, 0)]


@pytest.mark.parametrize("own", [None, Position(1, 7)], ids=["expired", "passed"])
async def test_one_that_was_away_for_longer_than_retention_assembles_all_that_is_left(own: Position | None) -> None:
    gone = [claim(7), open_(), open_()]
    left = [close(1), open_(), request(4, (1,)), span(4, 5, 0, (9,), (-1.0,), 0, "stop"), claim(3), close(4), close(2)]
    log = await passed(*gone, *left, first=3, owners=Position(10, 7), own=own)
    async with running(role(QUICK), log):
        await until(lambda: assembled(log), "the session that began after what is gone")
        append(log, SESSIONS, 0, open_())
        append(log, SESSIONS, 0, close(10))
        await until(lambda: assembled(log) == [(4, 1), (10, 0)], "that one, and what came since")


async def test_what_opened_before_the_epoch_is_known_is_left_out() -> None:
    """Whether epoch 3 was in force at offset 1 nobody can say any more: a greater one may have been claimed before."""
    log = await passed(open_(), claim(3), open_(), close(2), claim(7), open_(), close(5), first=1, owners=Position(7, 7))
    assert await find_starts(log, [0]) == {0: Start(Position(5, 7), None)}


async def test_a_claim_that_was_written_again_behind_the_owners_position_says_nothing_of_what_is_before() -> None:
    log = await passed(claim(7), open_(), close(1), claim(7), open_(), first=1, owners=Position(3, 7))
    assert await find_starts(log, [0]) == {0: Start(Position(1, 7), None)}


async def test_a_text_without_an_epoch_is_no_position_and_a_reset_must_be_at_least_as_great_as_the_newest_grant() -> None:
    log = await passed(claim(0), open_(), open_(), first=1, owners=Position(0, -1))
    for _ in range(3):
        append(log, GRANTS, 0, Grant(partition=0, node="n", incarnation="i"))
    await log.broker.commit(log.group("assembler"), {log.place(SESSIONS, 0): (2, "")})
    assert await find_starts(log, [0]) == {0: Start(Position(1, -1), 2)}


async def test_r10_records_before_the_owners_position_that_never_come_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start_module, "READ_S", 0.05)
    log = await passed(claim(7), open_(), close(1), first=1, owners=Position(9, 7))
    with pytest.raises(BrokerUnavailable, match="before 9 did not come"):
        await find_starts(log, [0])
