"""Who is woken, and what is cancelled, as records are read: the mirror without HTTP."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from schemas.arrays import pack_i4
from schemas.identity import START
from schemas.record import Record
from schemas.session import Claim, Close, Open, Request, Sampling
from schemas.topics import SESSIONS
from streams.codec import Entry
from streams.log import LogReader
from tests.unit.workers.gateway.scripted_owner import CHAT
from tests.unit.workers.running import append, memory_log
from workers.gateway.mirror import Leaver, Mirror
from workers.ledger import SessionState
from workers.positions import Start

pytestmark = pytest.mark.anyio


class Seen:
    """A mirror of two partitions, the Cancels that it asks for, and a log that is applied by hand."""

    def __init__(self) -> None:
        self.leavers: list[Leaver] = []
        self.mirror = Mirror({0: Start(START, None), 1: Start(START, None)}, CHAT, 10, self.leavers.append)

    def apply(self, record: Record, partition: int = 0) -> int:
        offset = self.mirror.ledgers[partition].next
        self.mirror.apply(Entry(partition, offset, 0, record))
        return offset

    def open(self) -> SessionState:
        return self.mirror.ledgers[0].sessions[self.apply(Open(nonce=b"o", check="abcdef"))]


def request(session: SessionState, nonce: bytes = b"r", **more: Any) -> Request:
    return Request(session=session.offset, nonce=nonce, tokens=pack_i4([1]), sampling=Sampling(max_tokens=2), **more)


def test_a_request_whose_caller_left_before_it_was_read_is_cancelled_once() -> None:
    seen = Seen()
    session = seen.open()
    seen.mirror.leave(seen.mirror.expect_request(0, session, b"r", streaming=False), "client left")
    assert seen.leavers == []
    offset = seen.apply(request(session))
    seen.apply(request(session))  # the writer sent it again
    assert seen.leavers == [Leaver(0, session.offset, offset, "client left")]


def test_a_caller_who_comes_back_before_it_was_read_gets_it() -> None:
    seen = Seen()
    session = seen.open()
    seen.mirror.leave(seen.mirror.expect_request(0, session, b"r", streaming=False), "client left")
    waiter = seen.mirror.expect_request(0, session, b"r", streaming=False)
    offset = seen.apply(request(session))
    assert (seen.leavers, waiter.request and waiter.request.offset) == ([], offset)


def test_what_ended_when_it_was_read_needs_no_cancel() -> None:
    seen = Seen()
    session = seen.open()
    seen.mirror.leave(seen.mirror.expect_request(0, session, b"r", streaming=False), "client left")
    seen.apply(request(session, base=99, base_length=1))
    assert seen.leavers == []


@pytest.mark.parametrize("end", [Close(session=0), Claim(epoch=3, node="n", incarnation="i", reset=True)], ids=["Close", "reset"])
async def test_whatever_ends_a_session_wakes_those_who_wait_in_it(end: Record) -> None:
    seen = Seen()
    session = seen.open()
    seen.apply(request(session))
    waiter = seen.mirror.expect_request(0, session, b"late", streaming=False)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter.news)
            tasks.start_soon(seen.mirror.end_of, session)
            await anyio.wait_all_tasks_blocked()
            seen.apply(end)
    assert waiter.is_over()
    assert seen.mirror.ledgers[0].sessions == {}


def test_inherited_is_what_stood_there_before_the_first_answer() -> None:
    seen = Seen()
    session = seen.open()
    before = session.requests[seen.apply(request(session))]
    seen.mirror.begin()
    after = session.requests[seen.apply(request(session, b"s"))]
    assert (seen.mirror.is_inherited(0, before), seen.mirror.is_inherited(0, after)) == (True, False)


class InTurns:
    """A reader whose partitions come one after the other, as they are let go."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self.let_go, self.entries = anyio.create_memory_object_stream[Entry[Record]](10)

    async def read(self, *, timeout_s: float) -> list[Entry[Record]]:
        """One record."""
        return [await self.entries.receive()]

    def position(self, partition: int) -> int:
        """Up to where it was applied."""
        return self._mirror.ledgers[partition].next


async def test_who_waits_for_several_partitions_waits_for_the_last_of_them() -> None:
    log, seen = await memory_log(partitions=2), Seen()
    opened = Open(nonce=b"o", check="abcdef")
    entries = [Entry[Record](partition, append(log, SESSIONS, partition, opened), 0, opened) for partition in (0, 1)]
    reader, is_caught_up = InTurns(seen.mirror), False
    with reader.let_go, reader.entries:
        async with anyio.create_task_group() as tasks:

            async def catch_up() -> None:
                nonlocal is_caught_up
                await seen.mirror.read_to_end(log)
                is_caught_up = True

            tasks.start_soon(seen.mirror.run, cast("LogReader", reader))
            tasks.start_soon(catch_up)
            await anyio.wait_all_tasks_blocked()
            for entry, expected in zip(entries, (False, True), strict=True):
                reader.let_go.send_nowait(entry)
                await anyio.wait_all_tasks_blocked()
                assert is_caught_up == expected
            tasks.cancel_scope.cancel()
