"""Calls that are made again: what stands in the log is answered, and nothing is generated a second time beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from openai import AsyncOpenAI

from schemas.arrays import pack_i4
from schemas.identity import SessionId
from schemas.record import Record
from schemas.session import Cancel, Claim, Open, Request, Sampling
from schemas.topics import SESSIONS
from streams.log import Log
from tests.unit.workers.gateway.scripted_owner import CHAT, END, always, gateway, owned, spans
from tests.unit.workers.running import DEADLINE_S, append, entries, memory_log, until
from workers.gateway.repeats import FIRST, Repeat, repeat_of

pytestmark = pytest.mark.anyio

HELLO: Any = [{"role": "user", "content": "hello"}]
PROMPT = [*CHAT.opening(), *CHAT.message("user", "hello"), *CHAT.generation()]
RETRY = {"x-stainless-retry-count": "1"}
OPENER = "gateway-0"


@dataclass
class Orphan:
    """A session with one request, written by a gateway that is gone."""

    log: Log
    session: int
    request: int
    check: str = "abcdef"

    @property
    def path(self) -> str:
        return f"/s/{SessionId(0, self.session, self.check)}/v1"

    def write(self, record: Record) -> int:
        return append(self.log, SESSIONS, 0, record)

    def claim(self, epoch: int) -> None:
        self.write(Claim(epoch=epoch, node="n", incarnation="i"))

    def say(self, *parts: list[int], epoch: int = 7) -> None:
        """Spans as an owner writes them; the last of several ends the request, one alone does not."""
        shown = spans(self.session, self.request, epoch, [*parts, [END]] if len(parts) == 1 else parts)
        for span in shown[: len(parts)]:
            self.write(span)

    def requests(self) -> list[Request]:
        return [entry.record for entry in entries(self.log, SESSIONS, Request)]


async def orphan(**sampling: Any) -> Orphan:
    """`hello` was asked, an owner has claimed the partition, nothing was answered."""
    log = await memory_log()
    session = append(log, SESSIONS, 0, Open(nonce=b"open", check="abcdef", gateway=OPENER))
    wanted = Sampling(max_tokens=9, stop_token_ids=CHAT.stop_token_ids, **sampling)
    request = append(log, SESSIONS, 0, Request(session=session, nonce=b"gone", tokens=pack_i4(PROMPT), sampling=wanted))
    left = Orphan(log, session, request)
    left.claim(7)
    return left


@dataclass
class Client:
    """Calls of one session through one gateway."""

    http: aiohttp.ClientSession
    base: str
    path: str

    @property
    def url(self) -> str:
        return self.base + self.path

    async def in_flight(self, count: int) -> None:
        """Wait until the gateway holds so many calls."""
        with anyio.fail_after(DEADLINE_S):
            while True:
                async with self.http.get(f"{self.base}/readyz") as response:
                    if (await response.json())["calls"] == count:
                        return
                await anyio.sleep(0.005)

    async def call(self, headers: dict[str, str] | None = None, **more: Any) -> tuple[int, dict[str, Any]]:
        body = {"messages": HELLO, "max_tokens": 9, **more}
        async with self.http.post(f"{self.url}/chat/completions", json=body, headers=headers or {}) as response:
            return response.status, await response.json()


@asynccontextmanager
async def calling(left: Orphan, folder: Path, **settings: Any) -> AsyncIterator[Client]:
    """A client of a gateway that starts now."""
    async with gateway(left.log, folder, **{"name": OPENER, **settings}) as base, aiohttp.ClientSession() as http:
        yield Client(http, base, left.path)


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


@pytest.mark.parametrize("headers", [{}, RETRY])
async def test_a_request_that_a_dead_gateway_left_is_joined_and_its_tokens_are_the_answer(headers: dict[str, str], tmp_path: Path) -> None:
    left = await orphan()
    left.say(CHAT.encode("ab"))
    async with calling(left, tmp_path) as client, anyio.create_task_group() as tasks:
        answers: list[tuple[int, dict[str, Any]]] = []

        async def call() -> None:
            answers.append(await client.call(headers))

        tasks.start_soon(call)
        await client.in_flight(1)
        left.claim(8)
        left.write(spans(left.session, left.request, 8, [CHAT.encode("ab"), [*CHAT.encode("c"), END]])[1])
        await until(lambda: answers, "the answer")
    ((status, answer),) = answers
    assert (status, text_of(answer), answer["id"]) == (200, "abc", f"chatcmpl-0-{left.request}")
    assert len(left.requests()) == 1


async def test_a_stream_that_joins_shows_what_was_sampled_before(tmp_path: Path) -> None:
    left = await orphan()
    left.say(CHAT.encode("ab"), [*CHAT.encode("c"), END])
    async with calling(left, tmp_path) as client, AsyncOpenAI(base_url=client.url, api_key="none") as openai:
        stream = await openai.chat.completions.create(model="policy", messages=HELLO, max_tokens=9, stream=True, extra_headers=RETRY)
        shown = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert (shown, len(left.requests())) == ("abc", 1)


async def test_an_answer_that_was_lost_on_the_way_is_given_to_the_call_that_was_tried_before_and_once(tmp_path: Path) -> None:
    left = await orphan()
    left.say(CHAT.encode("ab"), [*CHAT.encode("c"), END])
    async with owned(left.log, always("new"), epoch=8), calling(left, tmp_path) as client:
        said = [text_of((await client.call(headers))[1]) for headers in (RETRY, RETRY, {})]
    assert said == ["abc", "new", "new"]
    assert len(left.requests()) == 3


async def test_a_call_that_says_nothing_draws_anew_when_the_other_one_has_ended(tmp_path: Path) -> None:
    left = await orphan()
    left.say(CHAT.encode("ab"), [*CHAT.encode("c"), END])
    async with owned(left.log, always("new"), epoch=8), calling(left, tmp_path) as client:
        assert text_of((await client.call())[1]) == "new"


async def test_a_request_that_another_gateway_may_wait_for_is_not_joined_unasked(tmp_path: Path) -> None:
    left = await orphan()
    async with calling(left, tmp_path, name="gateway-1") as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.call)
        await until(lambda: len(left.requests()) == 2, "a Request of its own")
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("other", [{"seed": 4}, {"temperature": 0.5}, {"max_tokens": 8}])
async def test_other_sampling_is_another_request(other: dict[str, Any], tmp_path: Path) -> None:
    left = await orphan(seed=3)
    left.say(CHAT.encode("ab"), [*CHAT.encode("c"), END])
    async with owned(left.log, always("new"), epoch=8), calling(left, tmp_path) as client:
        assert text_of((await client.call(RETRY, **{"seed": 3, **other}))[1]) == "new"


async def test_a_joined_request_that_its_first_gateway_cancels_is_asked_anew(tmp_path: Path) -> None:
    left = await orphan()
    async with calling(left, tmp_path) as client, anyio.create_task_group() as tasks:
        answers: list[tuple[int, dict[str, Any]]] = []

        async def call() -> None:
            answers.append(await client.call(RETRY))

        tasks.start_soon(call)
        await client.in_flight(1)
        left.write(Cancel(session=left.session, request=left.request))
        async with owned(left.log, always("new"), epoch=8):
            await until(lambda: answers, "the answer")
    ((status, answer),) = answers
    assert (status, text_of(answer), len(left.requests())) == (200, "new", 2)


async def test_a_cancelled_request_is_nobodys_answer(tmp_path: Path) -> None:
    left = await orphan()
    left.say(CHAT.encode("ab"))
    left.write(Cancel(session=left.session, request=left.request))
    async with owned(left.log, always("new"), epoch=8), calling(left, tmp_path) as client:
        assert text_of((await client.call(RETRY))[1]) == "new"


async def test_calls_with_one_key_have_one_request_whichever_gateway_they_take(tmp_path: Path) -> None:
    left = await orphan()
    key = {"Idempotency-Key": "call 1"}
    answers: list[tuple[int, dict[str, Any]]] = []
    async with calling(left, tmp_path / "a") as one, calling(left, tmp_path / "b", name="gateway-1") as two:
        async with anyio.create_task_group() as tasks:

            async def call(client: Client) -> None:
                answers.append(await client.call(key, temperature=0.5))

            for client in (one, one, two, two):
                tasks.start_soon(call, client)
            await one.in_flight(2)
            await two.in_flight(2)
            async with owned(left.log, always("ab"), epoch=8):
                await until(lambda: len(answers) == 4, "all answers")
        answers.append(await two.call(key, temperature=0.5))
        refused, problem = await one.call(key, temperature=0.6)
    assert {(status, answer["id"]) for status, answer in answers} == {(200, answers[0][1]["id"])}
    assert len({request.nonce for request in left.requests()}) == 2
    assert (refused, problem["error"]["code"]) == (422, "idempotency_key_reused")


async def test_one_of_two_callers_leaves_and_the_request_goes_on(tmp_path: Path) -> None:
    left = await orphan()
    key = {"Idempotency-Key": "k"}
    async with calling(left, tmp_path) as client, anyio.create_task_group() as tasks:
        leaving, answers = anyio.CancelScope(), list[tuple[int, dict[str, Any]]]()

        async def leave() -> None:
            with leaving:
                await client.call(key)

        async def stay() -> None:
            answers.append(await client.call(key))

        tasks.start_soon(leave)
        await until(lambda: len(left.requests()) == 2, "the Request")
        tasks.start_soon(stay)
        await client.in_flight(2)
        leaving.cancel()
        await client.in_flight(1)
        async with owned(left.log, always("ab"), epoch=8):
            await until(lambda: answers, "the answer of the one who stayed")
    assert (answers[0][0], text_of(answers[0][1])) == (200, "ab")
    assert not entries(left.log, SESSIONS, Cancel)


def test_what_headers_say() -> None:
    assert repeat_of([(b"host", b"x")]) is FIRST
    assert repeat_of([(b"x-stainless-retry-count", b"0")]) is FIRST
    assert repeat_of([(b"x-stainless-retry-count", b"2")]) == Repeat(was_tried=True)
    assert repeat_of([(b"idempotency-key", b"a"), (b"x-stainless-retry-count", b"many")]) == Repeat(key=b"a")


def test_nonces_of_a_key_are_everybodys_and_without_one_nobody_elses() -> None:
    once, again = Repeat(b"a").nonces(), Repeat(b"a").nonces()
    first = next(once)
    assert first == next(again)
    assert first not in (next(once), next(Repeat(b"b").nonces()))
    assert next(FIRST.nonces()) != next(FIRST.nonces())
