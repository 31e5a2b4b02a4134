"""The rollout role on the double of Kafka, with the paced engine: its tokens say version × 10,000 + index, so the log proves the rest."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from structlog.testing import capture_logs

from schemas.arrays import pack_i4, unpack_i4
from schemas.errors import EngineError, NoProgress, TopicMismatch
from schemas.grant import Grant, Role
from schemas.identity import Position
from schemas.node import NodeStatus
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request, Sampling
from schemas.span import Span
from schemas.topics import GRANTS, NODES, SESSIONS, TRAINING
from schemas.training import WeightVersion
from streams.cas import CasLog, open_cas
from streams.codec import Entry
from streams.log import Log, RecordWriter
from streams.memory import MemoryBroker
from streams.service import Watch
from streams.topics import ensure_topics
from workers.ledger import Ledger, RequestState
from workers.rollout.engines.paced import PacedEngine
from workers.rollout.owner import Owner
from workers.rollout.service import role
from workers.rollout.settings import RolloutSettings

pytestmark = pytest.mark.anyio

DEADLINE_S = 20.0


@dataclass
class World:
    """A namespace with one partition of sessions, followed by a reader that never dies."""

    broker: MemoryBroker
    log: Log
    writer: RecordWriter
    grants: CasLog
    training: CasLog
    tasks: Any
    entries: list[Entry[Record]] = field(default_factory=list)
    statuses: list[NodeStatus] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)

    async def follow(self) -> None:
        async with self.log.follow(SESSIONS, {0: 0}) as reader:
            while True:
                for entry in await reader.read(timeout_s=1):
                    self.entries.append(entry)
                    self.ledger.apply(entry.offset, entry.record)

    async def follow_nodes(self) -> None:
        async with self.log.follow(NODES, {0: 0}) as reader:
            while True:
                self.statuses += [entry.record for entry in await reader.read(timeout_s=1) if isinstance(entry.record, NodeStatus)]

    async def until(self, condition: Callable[[], Any]) -> Any:
        with anyio.fail_after(DEADLINE_S):
            while not (value := condition()):
                await anyio.sleep(0.005)
            return value

    async def start(self, node: str, limit_s: float = 60.0, **more: Any) -> anyio.CancelScope:
        """Start a worker; answers the scope that ends it. Without progress for `limit_s` it ends by itself."""
        values: dict[str, Any] = {"engine": "paced", "paced_tokens_per_s": 200.0, "report_s": 0.05, "commit_s": 0.05, "flush_s": 0.02}
        settings = RolloutSettings(node=node, **(values | more))
        scope = anyio.CancelScope()

        async def body(*, task_status: Any) -> None:
            with scope:
                await role(settings)(self.log, Watch(limit_s), task_status=task_status)

        await self.tasks.start(body)
        return scope

    async def status(self, node: str, condition: Callable[[NodeStatus], Any] = bool) -> NodeStatus:
        def newest() -> NodeStatus | None:
            mine = [status for status in self.statuses if status.node == node]
            return mine[-1] if mine and condition(mine[-1]) else None

        found: NodeStatus = await self.until(newest)
        return found

    async def grant(self, node: str, cause: Any = "joined") -> int:
        status = await self.status(node, lambda status: status.state == "serving")
        grant = Grant(partition=0, node=node, incarnation=status.incarnation, cause=cause)
        return (await self.grants.write([(0, grant)]))[0]

    async def publish(self, version: int, *, files_from: int = 0) -> None:
        record = WeightVersion(
            version=version, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="", files_from=files_from
        )  # fmt: skip
        await self.training.write([(0, record)])

    async def send(self, record: Record) -> int:
        return await (await self.writer.send(SESSIONS, 0, record))

    async def ask(self, max_tokens: int = 20, nonce: bytes = b"r", session: int | None = None) -> int:
        """Open a session, if none is given, and write a Request; answers its offset."""
        if session is None:
            session = await self.send(Open(nonce=b"o", check="abcdef"))
        return await self.send(Request(session=session, nonce=nonce, tokens=pack_i4([1, 2, 3]), sampling=Sampling(max_tokens=max_tokens)))

    def request(self, offset: int) -> RequestState | None:
        for session in self.ledger.sessions.values():
            if offset in session.requests:
                return session.requests[offset]
        return None

    async def accepted(self, offset: int, count: int) -> RequestState:
        return await self.until(lambda: (found := self.request(offset)) and found.accepted >= count and found)

    async def ended(self, offset: int) -> RequestState:
        return await self.until(lambda: (found := self.request(offset)) and found.end and found)

    def spans(self, epoch: int) -> list[Span]:
        return [entry.record for entry in self.entries if isinstance(entry.record, Span) and entry.record.epoch == epoch]

    def claims(self) -> list[Claim]:
        return [entry.record for entry in self.entries if isinstance(entry.record, Claim)]


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    broker = MemoryBroker()
    await ensure_topics(broker, "test.", 1)
    log = Log(broker, "test.", "test")
    async with (
        log.writer() as writer,
        open_cas(log, GRANTS) as grants,
        open_cas(log, TRAINING) as training,
        anyio.create_task_group() as tasks,
    ):
        made = World(broker, log, writer, grants, training, tasks)
        tasks.start_soon(made.follow)
        tasks.start_soon(made.follow_nodes)
        await made.publish(0)
        yield made
        tasks.cancel_scope.cancel()


async def test_a_request_is_claimed_generated_and_ended() -> None:
    async with world() as made:
        await made.start("a")
        epoch = await made.grant("a")
        request = await made.ended(await made.ask(max_tokens=5))
        assert request.end is not None
        assert request.end.why == "length"
        assert request.token_ids() == [0, 1, 2, 3, 4]
        assert made.claims() == [Claim(epoch=epoch, node="a", incarnation=made.claims()[0].incarnation)]


async def test_r1_what_was_asked_before_the_claim_is_answered_after_it() -> None:
    async with world() as made:
        await made.start("a")
        asked = await made.ask(max_tokens=3)
        await made.grant("a")
        request = await made.ended(asked)
        assert request.token_ids() == [0, 1, 2]
        first_span = next(entry.offset for entry in made.entries if isinstance(entry.record, Span))
        claim = next(entry.offset for entry in made.entries if isinstance(entry.record, Claim))
        assert claim < first_span


async def test_a_worker_without_weights_says_loading_and_one_with_them_serving() -> None:
    async with world() as made:
        await made.start("a")
        status = await made.status("a", lambda status: status.state == "serving")
        assert status.version == 0
        assert made.statuses[0].state == "loading"


async def test_r8_a_worker_that_starts_late_serves_the_newest_version_only() -> None:
    async with world() as made:
        for first in range(1, 1201, 200):  # more than one read
            versions = [WeightVersion(version=first + more, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="")
                        for more in range(200)]  # fmt: skip
            await made.training.write([(0, version) for version in versions])
        await made.start("a")
        await made.status("a", lambda status: status.state == "serving")
        assert {status.version for status in made.statuses} <= {-1, 1200}


@pytest.mark.parametrize("files_from", [3, 2])
async def test_r8_a_worker_that_was_held_up_takes_the_newest_version(monkeypatch: pytest.MonkeyPatch, files_from: int) -> None:
    """The files of version 2 are gone when it comes to load them: by rule where the log lets go of them, else the worker must end."""
    load = PacedEngine.load

    async def held_up(engine: PacedEngine, version: WeightVersion) -> None:
        if version.version == 2:
            await made.publish(3, files_from=files_from)
            raise EngineError("its file cannot be read")
        await load(engine, version)

    monkeypatch.setattr(PacedEngine, "load", held_up)
    with pytest.RaisesGroup(EngineError, flatten_subgroups=True) if files_from == 2 else nullcontext():
        async with world() as made:
            await made.publish(2)
            await made.start("a")
            await made.status("a", lambda status: status.version == 3)
    assert {status.version for status in made.statuses} <= {-1, 3}


async def test_r5_positions_that_do_not_move_are_committed_again() -> None:
    async with world() as made:
        await made.start("a", recommit_s=0.1)
        await made.grant("a")
        place = made.log.place(SESSIONS, 0)

        async def committed() -> bool:
            return place in await made.broker.committed("test.rollout", [place])

        with anyio.fail_after(DEADLINE_S):
            while not await committed():
                await anyio.sleep(0.01)
            made.broker._groups["test.rollout"].offsets.clear()  # Kafka let it expire
            while not await committed():
                await anyio.sleep(0.01)


async def test_r5_the_position_passes_sessions_that_ended() -> None:
    async with world() as made:
        await made.start("a")
        epoch = await made.grant("a")
        request = await made.ended(await made.ask(max_tokens=2))
        closed = await made.send(Close(session=request.record.session))
        place = made.log.place(SESSIONS, 0)

        async def committed() -> Position:
            return Position.parse(*(await made.broker.committed("test.rollout", [place])).get(place, (0, "epoch=-1;")))

        with anyio.fail_after(DEADLINE_S):
            while await committed() != Position(closed + 1, epoch):
                await anyio.sleep(0.01)


async def test_r10_an_engine_that_samples_nothing_is_reported_as_alive_for_a_while_and_then_ends_its_worker() -> None:
    statuses: list[NodeStatus] = []
    with pytest.RaisesGroup(pytest.RaisesExc(NoProgress, match="1 requests and sampled nothing"), flatten_subgroups=True):
        async with world() as made:
            statuses = made.statuses
            await made.start("a", limit_s=1.0, stall_s=0.1, paced_first_token_s=1e6)
            await made.grant("a")
            await made.ask()
            await anyio.sleep(DEADLINE_S)
    assert len([status for status in statuses if status.running]) <= 3, "once in 0.05 s, for 0.1 s"


async def test_r5_a_revoke_writes_what_was_sampled_and_the_next_owner_goes_on_from_there() -> None:
    async with world() as made:
        await made.start("a")
        await made.start("b")
        await made.grant("a")
        asked = await made.ask(max_tokens=40)
        await made.accepted(asked, 3)
        revoked = (await made.grants.write([(0, Grant(partition=0))]))[0]
        await made.status("a", lambda status: status.grants_seen > revoked and not status.partitions)
        kept = made.request(asked)
        assert kept is not None
        accepted = kept.accepted
        epoch = await made.grant("b", "moved")
        request = await made.ended(asked)
        assert request.token_ids() == list(range(40))
        assert made.spans(epoch)[0].start == accepted


async def test_r5_where_every_position_is_gone_the_owner_writes_a_reset_and_keeps_no_position_before_it_is_read_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    positions, asked = Owner.positions, list[dict[int, Position]]()

    def noted(self: Owner) -> dict[int, Position]:
        asked.append(positions(self))
        return asked[-1]

    monkeypatch.setattr(Owner, "positions", noted)
    async with world() as made:
        before = await made.ask()
        await made.until(lambda: made.request(before))
        place = made.log.place(SESSIONS, 0)
        made.broker.truncate(place, 1)
        await made.start("a")
        await made.status("a", lambda status: status.state == "serving")
        made.broker.held = True  # its Claim is on its way
        epoch = await made.grant("a")
        await made.until(lambda: any(place in outbox.waiting() for outbox in made.broker.outboxes))
        asked.clear()
        await made.until(lambda: len(asked) > 1)
        assert asked == [{}] * len(asked)
        made.broker.held = False
        for outbox in made.broker.outboxes:
            while outbox.waiting():
                outbox.land(next(iter(outbox.waiting())))
        after = await made.ended(await made.ask(max_tokens=2, nonce=b"s"))
        assert after.token_ids() == [0, 1]
        assert [(claim.epoch, claim.reset) for claim in made.claims()] == [(epoch, True)]
        assert {span.request for span in made.spans(epoch)} == {after.offset}


@pytest.mark.parametrize("harm", ["none", "missing"])
async def test_the_next_owner_begins_with_a_snapshot_and_goes_on_alike_without(tmp_path: Path, harm: str) -> None:
    more = {"snapshots": str(tmp_path), "snapshot_bytes": 1000, "paced_first_token_s": 0.05}
    async with world() as made:
        await made.start("a", **more)
        await made.start("b", **more)
        await made.grant("a")
        asked = await made.ask(max_tokens=400)
        place = made.log.place(SESSIONS, 0)
        with anyio.fail_after(DEADLINE_S):
            while not await made.broker.committed("test.rollout.snapshots", [place]):
                await anyio.sleep(0.01)
        revoked = (await made.grants.write([(0, Grant(partition=0))]))[0]
        await made.status("a", lambda status: status.grants_seen > revoked and not status.partitions)
        if harm == "missing":
            shutil.rmtree(tmp_path)
        with capture_logs() as said:
            epoch = await made.grant("b", "moved")
            request = await made.ended(asked)
        assert request.token_ids() == list(range(400))
        assert made.spans(epoch)[0].start > 0
        taken = [line["by_snapshot"] for line in said if line["event"] == "taken"]
        assert taken == [[0] if harm == "none" else []]
        status = await made.status("b", lambda status: status.first_token_s)
        halves = {line["event"]: line["after_s"] for line in said if line["event"] in ("owned", "first token")}
        assert (status.own_s, status.first_token_s) == (halves["owned"], halves["first token"])


async def test_r1_a_greater_claim_ends_the_holding_and_its_spans_do_not_count() -> None:
    async with world() as made:
        await made.start("a")
        first = await made.grant("a")
        asked = await made.ask(max_tokens=1000)
        await made.accepted(asked, 3)
        later = (await made.grants.write([(0, Grant(partition=1))]))[0]
        await made.send(Claim(epoch=later, node="z", incarnation="z", cause="dead"))
        await made.status("a", lambda status: not status.partitions and not status.running)
        request = made.request(asked)
        assert request is not None
        stopped = request.accepted
        assert sum(span.count for span in made.spans(first)) >= stopped
        assert request.token_ids() == list(range(stopped))


async def test_r9_a_span_ends_at_a_version_boundary() -> None:
    async with world() as made:
        await made.start("a")
        epoch = await made.grant("a")
        asked = await made.ask(max_tokens=60)
        await made.accepted(asked, 5)
        await made.publish(1)
        request = await made.ended(asked)
        tokens = request.token_ids()
        assert [token % 10_000 for token in tokens] == list(range(60))
        assert [token // 10_000 for token in tokens] == request.versions()
        assert set(request.versions()) == {0, 1}
        assert all(len({token // 10_000 for token in unpack_i4(span.tokens)}) <= 1 for span in made.spans(epoch))


async def test_a_claim_beyond_the_end_of_grants_ends_the_worker() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(TopicMismatch, match="another namespace"), flatten_subgroups=True):
        async with world() as made:
            await made.start("a")
            epoch = await made.grant("a")
            await made.until(made.claims)
            await made.send(Claim(epoch=epoch + 100, node="z", incarnation="z"))
            await anyio.sleep(DEADLINE_S)


@pytest.mark.parametrize("ending", ["cancel", "close"])
async def test_an_ended_request_stops_the_engine(ending: str) -> None:
    async with world() as made:
        await made.start("a")
        await made.grant("a")
        asked = await made.ask(max_tokens=5000)
        request = await made.accepted(asked, 1)
        session = request.record.session
        await made.send(Cancel(session=session, request=asked) if ending == "cancel" else Close(session=session))
        await made.until(lambda: request.end)
        await made.status("a", lambda status: not status.running)


BOTH = ["rollout", "train"]


async def test_a_node_tagged_both_ways_sleeps_by_its_role_and_serves_the_newest_version_when_it_wakes() -> None:
    async with world() as made:
        await made.start("a", tags=BOTH)
        first = await made.grant("a")
        asked = await made.ask(max_tokens=400)
        await made.accepted(asked, 3)
        off = await made.grants.write([(0, Role(node="a", role="train", asleep=True)), (0, Grant(partition=0))])
        slept = await made.status("a", lambda status: status.state == "asleep" and status.grants_seen > off[1])
        assert (slept.partitions, slept.version, slept.running, slept.tags) == ([], -1, 0, BOTH)
        await made.publish(1)
        train = (await made.grants.write([(0, Role(node="a", role="train"))]))[0]
        await made.status("a", lambda status: status.state == "asleep" and status.grants_seen > train)
        await made.publish(2)
        back = (await made.grants.write([(0, Role(node="a", role="rollout", asleep=True))]))[0]
        await made.status("a", lambda status: status.state == "asleep" and status.grants_seen > back)
        await made.grants.write([(0, Role(node="a", role="rollout"))])
        woken = await made.status("a", lambda status: status.state == "serving")
        assert woken.version == 2
        again = await made.grant("a", "moved")
        request = await made.ended(asked)
        kept = sum(span.count for span in made.spans(first))
        assert made.spans(again)[0].start == kept
        assert request.versions() == [0] * kept + [2] * (400 - kept)
        states = [status.state for status in made.statuses if status.state != "loading"]
        assert [state for state, before in zip(states, ["", *states], strict=False) if state != before] == ["serving", "asleep", "serving"]


async def test_a_node_that_is_not_on_duty_holds_nothing_even_where_it_is_granted() -> None:
    async with world() as made:
        await made.start("a", tags=BOTH)
        await made.grant("a")
        await made.status("a", lambda status: status.partitions)
        off = (await made.grants.write([(0, Role(node="a", role="rollout", asleep=True))]))[0]
        slept = await made.status("a", lambda status: status.state == "asleep" and status.grants_seen > off)
        assert slept.partitions == []


async def test_a_fresh_process_does_what_the_last_role_says() -> None:
    async with world() as made:
        await made.grants.write([(0, Role(node=name, role="train")) for name in ("a", "b")])
        await made.start("a", tags=BOTH)
        await made.start("b")
        await made.status("a", lambda status: status.state == "asleep")
        await made.status("b", lambda status: status.state == "serving")  # with one tag, Roles mean nothing
        assert {status.version for status in made.statuses if status.node == "a"} == {-1}
        await made.grants.write([(0, Role(node="a", role="rollout", asleep=True))])
        await made.grants.write([(0, Role(node="a", role="rollout"))])
        await made.status("a", lambda status: (status.state, status.version) == ("serving", 0))


async def test_poison_after_three_deaths_the_request_fails() -> None:
    async with world() as made:
        asked = await made.ask()
        for epoch in (1, 2):
            await made.send(Claim(epoch=epoch, node="x", incarnation="x", cause="dead"))
        for _ in range(4):
            await made.grants.write([(0, Grant(partition=0))])
        await made.start("a")
        await made.grant("a", "dead")
        request = await made.ended(asked)
        assert request.end is not None
        assert request.end.why == "failed"
        assert "3 owners died" in request.detail


async def test_a_suspect_runs_alone() -> None:
    async with world() as made:
        asked = await made.ask(max_tokens=10)
        await made.send(Claim(epoch=1, node="x", incarnation="x", cause="dead"))
        for _ in range(3):
            await made.grants.write([(0, Grant(partition=0))])
        await made.start("a")
        await made.grant("a", "dead")
        other = await made.ask(max_tokens=10, nonce=b"s")
        await made.ended(asked)
        await made.ended(other)
        ends = {number: made.request(number).end.offset for number in (asked, other)}  # type: ignore[union-attr]
        first_of_other = next(entry.offset for entry in made.entries if isinstance(entry.record, Span) and entry.record.request == other)
        assert ends[asked] < first_of_other


async def test_a_clean_stop_gives_back_and_keeps_the_position() -> None:
    async with world() as made:
        scope = await made.start("a")
        await made.grant("a")
        asked = await made.ask(max_tokens=5000)
        request = await made.accepted(asked, 3)
        scope.cancel()
        last = await made.status("a", lambda status: status.state == "left")
        assert last.partitions == []
        place = made.log.place(SESSIONS, 0)
        offset, metadata = (await made.broker.committed("test.rollout", [place]))[place]
        session = made.ledger.sessions[request.record.session]
        assert Position.parse(offset, metadata) == (session.offset, session.epoch)
        assert request.token_ids() == list(range(request.accepted))
