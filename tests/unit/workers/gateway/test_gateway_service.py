"""The gateway over real HTTP, on the broker in memory."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from openai import APIStatusError, AsyncOpenAI

from schemas.arrays import unpack_i4
from schemas.errors import SetupError, UnknownRecord
from schemas.identity import START, Position, SessionId
from schemas.record import Record
from schemas.session import Cancel, Claim, Close, Open, Request
from schemas.span import Span
from schemas.topics import SESSIONS
from streams.broker import Outgoing
from streams.codec import Entry
from streams.log import Log, LogReader
from streams.memory import MemoryBroker
from streams.service import Watch
from tests.unit.workers.gateway.scripted_owner import CHAT, END, always, gateway, owned, say, settings_for, spans
from tests.unit.workers.running import append, entries, memory_log, records, until
from workers.gateway import service
from workers.gateway.mirror import Leaver, Mirror
from workers.gateway.service import catch_up, role, write_cancels
from workers.ledger import Ledger
from workers.positions import Start
from workers.snapshot import snapshot_of
from workers.snapshot_store import SnapshotStore

pytestmark = pytest.mark.anyio

HELLO: Any = [{"role": "user", "content": "hello"}]


class Agent:
    """An HTTP client of one gateway, on one session."""

    def __init__(self, http: aiohttp.ClientSession, base: str, opened: dict[str, Any]) -> None:
        self.http, self.base, self.opened = http, base, opened
        self.session = SessionId.parse(opened["id"])

    async def call(self, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"model": "policy", "messages": HELLO, **more}
        async with self.http.post(f"{self.base}/s/{self.session}/v1/chat/completions", json=body) as response:
            return response.status, await response.json()

    async def close(self, **body: Any) -> tuple[int, dict[str, Any]]:
        async with self.http.post(f"{self.base}/v1/sessions/{self.session}/close", json=body) as response:
            return response.status, await response.json()


@asynccontextmanager
async def serving(log: Log, folder: Path, text: str) -> AsyncIterator[str]:
    """A gateway, and an owner that always says `text`."""
    async with owned(log, always(text)), gateway(log, folder) as base:
        yield base


@asynccontextmanager
async def agent(base: str, **body: Any) -> AsyncIterator[Agent]:
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{base}/v1/sessions", json=body) as response:
            assert response.status == 201, await response.text()
            opened = await response.json()
        yield Agent(http, base, opened)


def openai(agent: Agent) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=agent.opened["base_url"], api_key="none", max_retries=0)


async def test_the_openai_client_gets_what_was_sampled(tmp_path: Path) -> None:
    log = await memory_log()
    async with serving(log, tmp_path, "ifmmp") as base, agent(base, group=3, member=1) as runner, openai(runner) as client:
        answer = await client.chat.completions.create(model="any", messages=HELLO, temperature=0.5, seed=9, max_tokens=20, logprobs=True)
    choice, logprobs = answer.choices[0], answer.choices[0].logprobs
    assert (choice.message.content, choice.finish_reason) == ("ifmmp", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 6, 13)
    assert logprobs is not None
    assert [item.token for item in logprobs.content or []] == ["i", "f", "m", "m", "p", ""]
    assert (logprobs.content or [])[0].logprob == pytest.approx(-(6 + 8) / 100)  # i is letter 8, after six special tokens
    (request,) = entries(log, SESSIONS, Request)
    assert answer.id == f"chatcmpl-{request.partition}-{request.offset}"
    sampling = request.record.sampling
    assert (sampling.temperature, sampling.seed, sampling.max_tokens, sampling.stop_token_ids) == (0.5, 9, 20, [END])
    extension = answer.model_extra["seamlessflow"]  # type: ignore[index]
    assert (extension["session"], extension["request"], extension["versions"]) == (str(runner.session), request.offset, [3, 3])
    assert 0 <= extension["timing_ms"]["readable"] <= extension["timing_ms"]["first_span"] <= extension["timing_ms"]["answered"]
    (opened,) = records(log, SESSIONS, Open)
    assert (opened.group, opened.member, opened.purpose, opened.check) == (3, 1, "train", runner.session.check)


async def test_a_stream_shows_every_span_with_its_text_and_ends_with_the_usage(tmp_path: Path) -> None:
    log = await memory_log()
    parts = [CHAT.encode("ab"), CHAT.encode("cd"), [END]]
    async with owned(log, lambda *_: parts), gateway(log, tmp_path) as base, agent(base) as runner, openai(runner) as client:
        stream = await client.chat.completions.create(
            model="policy", messages=HELLO, stream=True, stream_options={"include_usage": True}, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "abcd"
    logprobs = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    tokens = [item.token for part in logprobs if part is not None for item in part.content or []]
    assert tokens == ["a", "b", "c", "d", ""]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5
    assert chunks[-2].model_extra["seamlessflow"]["versions"] == [3, 5]  # type: ignore[index]
    assert all(request.stream for request in records(log, SESSIONS, Request))


async def test_two_turns_extend_the_recorded_ids_also_through_another_gateway(tmp_path: Path) -> None:
    log = await memory_log()
    history: Any = [*HELLO, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "c"}]
    async with serving(log, tmp_path / "a", "ab") as first, gateway(log, tmp_path / "b") as second, agent(first) as runner:
        await runner.call()
        runner.base = second
        status, answer = await runner.call(messages=history)
    assert (status, answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]) == (200, "ab", 7 + 3 + 2)
    one, two = entries(log, SESSIONS, Request)
    assert (two.record.base, two.record.base_length) == (one.offset, 7 + 3)
    assert unpack_i4(two.record.tokens) == [*CHAT.encode("c"), *CHAT.generation()]


class Held:
    """A mirror's reader that can be held: then it reads only while somebody must know what stands at the end."""

    def __init__(self) -> None:
        self.is_held = self.is_parked = False

    def mirror(self, *given: Any) -> Mirror:
        """A mirror that reads through this."""
        self._mirror = Mirror(*given)
        self._run, self._mirror.run = self._mirror.run, self.run  # type: ignore[method-assign]
        return self._mirror

    async def run(self, reader: LogReader) -> None:
        """As `Mirror.run`."""
        self._reader = reader
        await self._run(cast("LogReader", self))

    async def read(self, *, timeout_s: float) -> list[Entry[Record]]:
        """As `LogReader.read`, and never for long."""
        while self.is_held and not self._mirror._catching_up:
            self.is_parked = True
            await anyio.sleep(0.002)
        return await self._reader.read(timeout_s=min(timeout_s, 0.01))

    def position(self, partition: int) -> int:
        """As `LogReader.position`."""
        return self._reader.position(partition)


async def test_an_assistant_message_that_is_unknown_is_looked_for_at_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, held = await memory_log(partitions=1), Held()
    history: Any = [*HELLO, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "c"}]
    async with serving(log, tmp_path / "a", "ab") as first, agent(first) as runner, anyio.create_task_group() as tasks:
        monkeypatch.setattr(service, "Mirror", held.mirror)
        async with gateway(log, tmp_path / "b") as second:
            held.is_held = True
            await until(lambda: held.is_parked, "it reads no more")
            await runner.call()
            late = Agent(runner.http, second, runner.opened)
            tasks.start_soon(partial(late.call, messages=history))
            await until(lambda: len(records(log, SESSIONS, Request)) == 2, "the second turn")
            held.is_held = False
    one, two = entries(log, SESSIONS, Request)
    assert (two.record.base, two.record.base_length) == (one.offset, 7 + 3)


async def test_a_call_is_held_while_nobody_owns_the_partition(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base, agent(base) as runner, anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append((await runner.call())[1])

        tasks.start_soon(call)
        await until(lambda: records(log, SESSIONS, Request), "the Request")
        async with owned(log, always("late")):
            await until(lambda: answers, "the answer")
    assert answers[0]["choices"][0]["message"]["content"] == "late"


async def test_a_call_that_was_held_too_long_is_answered_503_and_cancelled(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path, hold_s=0.2) as base, agent(base) as runner:
        async with runner.http.post(f"{base}/s/{runner.session}/v1/chat/completions", json={"messages": HELLO}) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
        await until(lambda: records(log, SESSIONS, Cancel), "the Cancel")
    (request,) = entries(log, SESSIONS, Request)
    (cancel,) = records(log, SESSIONS, Cancel)
    assert (cancel.session, cancel.request, cancel.reason) == (request.record.session, request.offset, "held too long")


@pytest.mark.parametrize(("stream", "padding"), [(False, 0), (True, 0), (False, 300_000)])
async def test_a_client_that_leaves_leaves_a_cancel(tmp_path: Path, stream: bool, padding: int) -> None:
    """With a body that the server's flow control pauses, too."""
    log = await memory_log()
    async with gateway(log, tmp_path) as base, agent(base) as runner:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await runner.call(stream=stream, user="a" * padding)

            tasks.start_soon(call)
            await until(lambda: records(log, SESSIONS, Request), "the Request")
            tasks.cancel_scope.cancel()
        await until(lambda: records(log, SESSIONS, Cancel), "the Cancel")
    (request,) = entries(log, SESSIONS, Request)
    assert [(cancel.session, cancel.request) for cancel in records(log, SESSIONS, Cancel)] == [(request.record.session, request.offset)]


async def test_a_request_that_becomes_readable_after_its_client_left_is_cancelled(tmp_path: Path) -> None:
    log = await memory_log()
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    async with gateway(log, tmp_path) as base, agent(base) as runner:
        broker.held = True
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await runner.call()

            tasks.start_soon(call)
            await until(lambda: waiting(broker), "the Request in the outbox")
            tasks.cancel_scope.cancel()
        async with runner.http.get(f"{base}/readyz") as response:
            assert response.status == 200
        await until_idle(runner, base)
        broker.held = False
        land(broker)
        await until(lambda: records(log, SESSIONS, Cancel), "the Cancel")
    (request,) = entries(log, SESSIONS, Request)
    assert [cancel.request for cancel in records(log, SESSIONS, Cancel)] == [request.offset]


async def until_idle(runner: Agent, base: str) -> None:
    """Wait until the gateway has no call in flight."""
    with anyio.fail_after(20):
        while True:
            async with runner.http.get(f"{base}/readyz") as response:
                if (await response.json())["calls"] == 0:
                    return


def waiting(broker: MemoryBroker) -> int:
    return sum(sum(outbox.waiting().values()) for outbox in broker.outboxes)


def land(broker: MemoryBroker) -> None:
    for outbox in broker.outboxes:
        for place, count in outbox.waiting().items():
            for _ in range(count):
                outbox.land(place)


async def test_a_resent_open_is_another_session_and_the_first_one_is_used(tmp_path: Path) -> None:
    log = await memory_log()
    broker = log.broker
    assert isinstance(broker, MemoryBroker)
    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http, anyio.create_task_group() as tasks:
        broker.held = True
        answers: list[dict[str, Any]] = []

        async def post() -> None:
            async with http.post(f"{base}/v1/sessions", json={"partition": 1}) as response:
                answers.append(await response.json())

        tasks.start_soon(post)
        await until(lambda: waiting(broker), "the Open in the outbox")
        (outbox,) = [outbox for outbox in broker.outboxes if outbox.waiting()]
        place = next(iter(outbox.waiting()))
        outbox.land(place, acknowledge=False)
        broker.held = False
        outbox.fail()  # its outcome is unknown to the writer, which sends it again
        await until(lambda: len(records(log, SESSIONS, Open)) == 2, "the resent Open")
        await until(lambda: answers, "the answer")
    one, two = entries(log, SESSIONS, Open)
    assert one.record == two.record
    assert answers[0]["id"] == f"1-{one.offset}-{one.record.check}"
    assert answers[0]["base_url"] == f"{base}/s/{answers[0]['id']}/v1"
    assert answers[0]["anthropic_base_url"] == f"{base}/s/{answers[0]['id']}"


async def test_a_span_of_an_old_epoch_is_never_shown(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    append(log, SESSIONS, 0, Claim(epoch=5, node="old", incarnation="o"))
    async with gateway(log, tmp_path) as base, agent(base) as runner, anyio.create_task_group() as tasks:
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append((await runner.call())[1])

        tasks.start_soon(call)
        await until(lambda: records(log, SESSIONS, Request), "the Request")
        (request,) = entries(log, SESSIONS, Request)
        append(log, SESSIONS, 0, Claim(epoch=8, node="new", incarnation="n"))
        for epoch, text in [(5, "zombie"), (8, "right")]:
            for span in spans(request.record.session, request.offset, epoch, [say(text)]):
                append(log, SESSIONS, 0, span)
        await until(lambda: answers, "the answer")
    assert answers[0]["choices"][0]["message"]["content"] == "right"


async def test_a_stream_that_fails_in_the_middle_says_so_and_never_says_done(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    body = {"messages": HELLO, "stream": True}
    append(log, SESSIONS, 0, Claim(epoch=5, node="n", incarnation="i"))
    async with gateway(log, tmp_path) as base, agent(base) as runner, anyio.create_task_group() as tasks:
        tasks.start_soon(span_of_first_request, log)
        async with runner.http.post(f"{base}/s/{runner.session}/v1/chat/completions", json=body) as response:
            opening = await response.content.readuntil(b"\n\n") + await response.content.readuntil(b"\n\n")
            fail_request(log, 2)
            rest = (await response.content.read()).decode()
    assert response.status == 200
    assert b'"content":"ab"' in opening
    assert rest.startswith('data: {"error":{"message":"the request failed: its owner died three times"')
    assert "[DONE]" not in rest


async def test_a_request_that_failed_for_good_is_422(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    append(log, SESSIONS, 0, Claim(epoch=5, node="n", incarnation="i"))
    async with gateway(log, tmp_path) as base, agent(base) as runner, openai(runner) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(fail_first_request, log)
        with pytest.raises(APIStatusError) as caught:
            await client.chat.completions.create(model="policy", messages=HELLO)
    assert (caught.value.status_code, caught.value.code) == (422, "request_failed")
    assert "died three times" in caught.value.message


async def span_of_first_request(log: Log) -> None:
    await until(lambda: records(log, SESSIONS, Request), "the Request")
    (request,) = entries(log, SESSIONS, Request)
    append(log, SESSIONS, 0, spans(request.record.session, request.offset, 5, [CHAT.encode("ab"), [END]])[0])


async def fail_first_request(log: Log) -> None:
    await until(lambda: records(log, SESSIONS, Request), "the Request")
    fail_request(log, 0)


def fail_request(log: Log, start: int) -> None:
    (request,) = entries(log, SESSIONS, Request)
    failing = Span(
        session=request.record.session, request=request.offset, epoch=5, start=start, tokens=b"", logprobs=b"", version=0, kv_version=0,
        finish="failed", detail="its owner died three times",
    )
    append(log, SESSIONS, 0, failing)


async def test_closing_ends_the_session_once_and_for_all(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base, agent(base) as runner:
        first = await runner.close(outcome="solved", reward=0.5)
        again = await runner.close(outcome="other")
        assert first == again
        assert (first[0], first[1]["state"], first[1]["outcome"], first[1]["reward"]) == (200, "ended", "solved", 0.5)
        status, error = await runner.call()
        assert (status, error["error"]["code"]) == (410, "session_closed")
    assert len(records(log, SESSIONS, Close)) == 1


async def test_a_call_in_flight_ends_with_its_session(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base, agent(base) as runner, anyio.create_task_group() as tasks:
        statuses: list[int] = []

        async def call() -> None:
            statuses.append((await runner.call())[0])

        tasks.start_soon(call)
        await until(lambda: records(log, SESSIONS, Request), "the Request")
        await runner.close()
        await until(lambda: statuses, "the answer")
    assert statuses == [410]
    assert not records(log, SESSIONS, Cancel)


async def test_a_gateway_that_stops_sends_waiting_calls_elsewhere(tmp_path: Path) -> None:
    log = await memory_log()
    answers: list[tuple[int, dict[str, Any]]] = []
    async with aiohttp.ClientSession() as http, anyio.create_task_group() as tasks:

        async def call(base: str) -> None:
            async with http.post(f"{base}/v1/sessions") as response:
                runner = Agent(http, base, await response.json())
            answers.append(await runner.call())

        async with gateway(log, tmp_path) as base:
            tasks.start_soon(call, base)
            await until(lambda: records(log, SESSIONS, Request), "the Request")
        await until(lambda: answers, "the answer")
    assert answers[0][0] == 503
    assert [cancel.reason for cancel in records(log, SESSIONS, Cancel)] == ["gateway stops"]


async def test_a_gateway_that_must_end_answers_the_calls_that_wait_and_says_why_it_ended(tmp_path: Path) -> None:
    log = await memory_log()
    answers: list[tuple[int, dict[str, Any]]] = []

    async def call(http: aiohttp.ClientSession, base: str) -> None:
        with anyio.CancelScope(shield=True):
            async with http.post(f"{base}/v1/sessions") as response:
                runner = Agent(http, base, await response.json())
            answers.append(await runner.call())

    async def meet_a_newer_record() -> None:
        async with aiohttp.ClientSession() as http, anyio.create_task_group() as calls, gateway(log, tmp_path) as base:
            calls.start_soon(call, http, base)
            await until(lambda: records(log, SESSIONS, Request), "the Request")
            newer = Outgoing(log.name(SESSIONS), 0, b"", b"", (("type", b"Newer"), ("schema", b"9.0")))
            log.broker.append(newer)  # type: ignore[attr-defined]
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as ended:
        await meet_a_newer_record()
    assert ended.group_contains(UnknownRecord)
    assert [status for status, _ in answers] == [503]
    assert answers[0][1]["error"]["type"] == "server_error"


async def test_a_session_is_described_by_the_fold(tmp_path: Path) -> None:
    log = await memory_log()
    opening = {"purpose": "eval", "group": 4, "payload": {"word": "x"}}
    async with serving(log, tmp_path, "ab") as base, agent(base, **opening) as runner:
        await runner.call()
        async with runner.http.get(f"{base}/v1/sessions/{runner.session}") as response:
            described = await response.json()
    expected = {"state": "open", "purpose": "eval", "group": 4, "requests": 1, "running": 0}
    assert {name: described[name] for name in expected} == expected
    assert records(log, SESSIONS, Open)[0].payload == {"word": "x"}


async def test_a_gateway_starts_where_the_owners_positions_stand(tmp_path: Path) -> None:
    """Sessions before a Position have ended (R5): 410, although this gateway never read them."""
    log = await memory_log(partitions=1)
    for session in (0, 2):
        append(log, SESSIONS, 0, Open(nonce=b"%d" % session, check="abcdef"))
        append(log, SESSIONS, 0, Close(session=session, nonce=b"c"))
    await log.broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (2, Position(2, -1).metadata())})
    assert isinstance(log.broker, MemoryBroker)
    log.broker.truncate(log.place(SESSIONS, 0), 2)  # reading from anywhere before would be RetentionPassed
    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http:
        for session, status in [("0-0-abcdef", 410), ("0-2-abcdef", 410), ("0-2-wrong1", 404), ("0-9-abcdef", 404), ("7-0-abcdef", 404)]:
            async with http.post(f"{base}/s/{session}/v1/chat/completions", json={"messages": HELLO}) as response:
                assert response.status == status, session


async def test_a_gateway_that_begins_with_a_snapshot_serves_what_is_open_and_knows_what_ended(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    for record in (Open(nonce=b"0", check="abcdef"), Open(nonce=b"1", check="abcdef"), Close(session=0, nonce=b"c")):
        append(log, SESSIONS, 0, record)
    store, ledger = SnapshotStore(log, str(tmp_path / "snapshots"), "rollout"), Ledger()
    for entry in entries(log, SESSIONS, Record):
        ledger.apply(entry.offset, entry.record)
    await store.keep(snapshot_of(ledger, log.name(SESSIONS), 0))
    found: dict[str, object] = {}
    async with gateway(log, tmp_path, snapshots=store.url) as base, aiohttp.ClientSession() as http:
        for session in ("0-0-abcdef", "0-1-abcdef", "0-1-wrong1", "0-9-abcdef"):
            async with http.get(f"{base}/v1/sessions/{session}") as response:
                said = await response.json()
                found[session] = response.status, said.get("state"), said.get("ended_by")
    assert found["0-0-abcdef"] == (200, "ended", "unknown"), "it was never read"
    assert found["0-1-abcdef"] == (200, "open", None)
    assert [found[session] for session in ("0-1-wrong1", "0-9-abcdef")] == [(404, None, None)] * 2


async def test_more_calls_than_admitted_are_429(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path, max_calls=1) as base, agent(base) as runner, anyio.create_task_group() as tasks:

        async def call() -> None:
            await runner.call()

        tasks.start_soon(call)
        await until(lambda: records(log, SESSIONS, Request), "the Request")
        status, error = await runner.call()
        assert (status, error["error"]["code"]) == (429, "overloaded")
        tasks.cancel_scope.cancel()


async def test_a_port_that_is_taken_is_one_clear_error(tmp_path: Path) -> None:
    log = await memory_log()
    async with gateway(log, tmp_path) as base:
        port = int(base.rpartition(":")[2])
        with pytest.raises(SetupError, match=f"127.0.0.1:{port}.*set another"):
            await role(settings_for(tmp_path, port=port))(log, Watch(), task_status=anyio.TASK_STATUS_IGNORED)


async def test_a_client_that_leaves_in_the_middle_of_a_stream_leaves_a_cancel(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    append(log, SESSIONS, 0, Claim(epoch=5, node="n", incarnation="i"))
    async with gateway(log, tmp_path) as base, agent(base) as runner, anyio.create_task_group() as tasks:
        tasks.start_soon(span_of_first_request, log)
        body = {"messages": HELLO, "stream": True}
        async with runner.http.post(f"{base}/s/{runner.session}/v1/chat/completions", json=body) as response:
            await response.content.readuntil(b"\n\n")
            response.close()
        await until(lambda: records(log, SESSIONS, Cancel), "the Cancel")
    assert [cancel.reason for cancel in records(log, SESSIONS, Cancel)] == ["client left"]


async def test_a_silent_stream_is_kept_open_by_comments(tmp_path: Path) -> None:
    log = await memory_log(partitions=1)
    async with gateway(log, tmp_path, keepalive_s=0.05) as base, agent(base) as runner:
        body = {"messages": HELLO, "stream": True}
        async with runner.http.post(f"{base}/s/{runner.session}/v1/chat/completions", json=body) as response:
            assert await response.content.readuntil(b"\n\n") == b": waiting\n\n"
            async with owned(log, always("late")):
                rest = await response.content.read()
    assert b'"content":"late"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")


async def test_while_a_gateway_catches_up_its_wait_begins_anew_with_what_it_reads() -> None:
    log, watch, cause = await memory_log(partitions=1), Watch(), "the end of sessions"
    mirror = Mirror({0: Start(START, None)}, CHAT, 10, lambda leaver: None)
    for number in range(4):
        append(log, SESSIONS, 0, Open(nonce=b"%d" % number, check="abcdef"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(catch_up, log, mirror, watch, task_status=anyio.TASK_STATUS_IGNORED))
        await until(lambda: cause in watch.waits, "the wait")
        for entry in entries(log, SESSIONS, Open)[:3]:
            since_s = watch.waits[cause]
            mirror.apply(entry)
            await until(lambda: watch.waits[cause] > since_s, "a new wait")  # noqa: B023
        assert not mirror.caught_up
        tasks.cancel_scope.cancel()


async def test_where_retention_passed_every_position_one_that_comes_later_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LOOK_S", 0.01)
    log = await memory_log(partitions=1)
    for session in (0, 1, 2):
        append(log, SESSIONS, 0, Open(nonce=b"%d" % session, check="abcdef"))
    assert isinstance(log.broker, MemoryBroker)
    log.broker.truncate(log.place(SESSIONS, 0), 1)

    async def status(http: aiohttp.ClientSession, base: str, session: int) -> int:
        async with http.get(f"{base}/v1/sessions/0-{session}-abcdef") as response:
            return response.status

    async with gateway(log, tmp_path) as base, aiohttp.ClientSession() as http:
        assert await status(http, base, 2) == 404
        await log.broker.commit(log.group("rollout"), {log.place(SESSIONS, 0): (2, Position(2, -1).metadata())})
        with anyio.fail_after(20):
            while await status(http, base, 2) != 200:
                await anyio.sleep(0.01)
        assert append(log, SESSIONS, 0, Open(nonce=b"3", check="abcdef")) == 3
        with anyio.fail_after(20):
            while await status(http, base, 3) != 200:
                await anyio.sleep(0.01)


async def test_a_session_that_is_opened_before_a_reset_is_refused_at_once_and_one_after_it_is_opened(tmp_path: Path) -> None:
    """Its Open is read back and does not count: waiting longer would not help."""
    log = await memory_log(partitions=1)
    append(log, SESSIONS, 0, Open(nonce=b"0", check="abcdef"))
    assert isinstance(log.broker, MemoryBroker)
    log.broker.truncate(log.place(SESSIONS, 0), 1)
    async with gateway(log, tmp_path, answer_s=1e6) as base, aiohttp.ClientSession() as http:
        with anyio.fail_after(60):
            async with http.post(f"{base}/v1/sessions") as response:
                said = await response.json()
        assert (response.status, said["error"]["code"]) == (503, "unavailable")
        assert said["error"]["message"].startswith("nothing in partition 0 counts before its next owner begins it anew")
        append(log, SESSIONS, 0, Claim(epoch=0, node="n", incarnation="i", reset=True))
        async with http.post(f"{base}/v1/sessions") as response:
            assert response.status == 201
    assert len(records(log, SESSIONS, Open)) == 2


async def test_a_cancel_that_is_handed_over_when_the_gateway_ends_is_written() -> None:
    log = await memory_log(partitions=1)
    append(log, SESSIONS, 0, Open(nonce=b"0", check="abcdef"))
    leavers, to_cancel = anyio.create_memory_object_stream[Leaver](math.inf)
    async with leavers, to_cancel, log.writer() as writer, anyio.create_task_group() as tasks:
        tasks.start_soon(write_cancels, to_cancel, writer)
        await anyio.wait_all_tasks_blocked()
        async with writer.writer._turn:  # the writer has no room at this moment
            leavers.send_nowait(Leaver(0, 0, 1, "gateway stops"))
            assert not leavers.statistics().current_buffer_used
            tasks.cancel_scope.cancel()
            await anyio.lowlevel.cancel_shielded_checkpoint()
    assert [cancel.reason for cancel in records(log, SESSIONS, Cancel)] == ["gateway stops"]
