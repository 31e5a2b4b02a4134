"""The gateway over real HTTP and real Kafka: the openai client, two turns, two gateways, a takeover, an agent that leaves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import aiohttp
import anyio
import pytest
from openai import AsyncOpenAI

from schemas.arrays import unpack_i4
from schemas.record import Record
from schemas.session import Cancel, Open, Request
from schemas.topics import SESSIONS
from streams.codec import Entry
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics
from tests.unit.workers.gateway.scripted_owner import CHAT, END, always, gateway, owned

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
HELLO: Any = [{"role": "user", "content": "hello"}]
SECOND_TURN: Any = [*HELLO, {"role": "assistant", "content": "ab"}, {"role": "user", "content": "c"}]

R = TypeVar("R", bound=Record)


@pytest.fixture
async def log(kafka_bootstrap: str, namespace: str) -> Log:
    broker = KafkaBroker(kafka_bootstrap, client_id="test-gateway")
    await ensure_topics(broker, namespace, 2)
    return Log(broker, namespace, "test")


async def entries(log: Log, kind: type[R]) -> list[Entry[R]]:
    """All records of a kind that stand in `sessions` now."""
    async with log.follow_all(SESSIONS) as reader:
        found = await reader.read_to_end([0, 1])
    return [entry for entry in found if isinstance(entry.record, kind)]  # type: ignore[misc]


async def first(log: Log, kind: type[R], wanted: Callable[[R], bool] = lambda _: True) -> Entry[R]:
    """The first such record, as soon as it stands in the log."""
    with anyio.fail_after(DEADLINE_S):
        async with log.follow_all(SESSIONS) as reader:
            while True:
                for entry in await reader.read(timeout_s=1.0):
                    if isinstance(entry.record, kind) and wanted(entry.record):
                        return entry  # type: ignore[return-value]


@asynccontextmanager
async def opened(base: str, **body: Any) -> AsyncIterator[AsyncOpenAI]:
    """A session, as the openai client sees it."""
    async with aiohttp.ClientSession() as http, http.post(f"{base}/v1/sessions", json=body) as response:
        session = await response.json()
    async with AsyncOpenAI(base_url=session["base_url"], api_key="none", max_retries=0, timeout=DEADLINE_S) as client:
        yield client


async def test_blocking_streaming_and_a_second_turn_that_extends_the_recorded_ids(log: Log, tmp_path: Path) -> None:
    parts = [CHAT.encode("a"), CHAT.encode("b"), [END]]
    async with owned(log, lambda *_: parts), gateway(log, tmp_path) as base, opened(base, group=1, member=0) as client:
        one = await client.chat.completions.create(model="policy", messages=HELLO)
        stream = await client.chat.completions.create(
            model="policy", messages=SECOND_TURN, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert one.choices[0].message.content == "ab"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "ab"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 7 + 3 + 2
    first_turn, second_turn = await entries(log, Request)
    assert (second_turn.record.base, second_turn.record.base_length) == (first_turn.offset, 7 + 3)
    assert unpack_i4(second_turn.record.tokens) == [*CHAT.encode("c"), *CHAT.generation()]


async def test_another_gateway_continues_the_session(log: Log, tmp_path: Path) -> None:
    async with owned(log, always("ab")), gateway(log, tmp_path / "a") as one, gateway(log, tmp_path / "b") as two, opened(one) as client:
        await client.chat.completions.create(model="policy", messages=HELLO)
        other = client.with_options(base_url=str(client.base_url).replace(one, two))
        answer = await other.chat.completions.create(model="policy", messages=SECOND_TURN)
    assert answer.choices[0].message.content == "ab"
    requests = await entries(log, Request)
    assert requests[1].record.base == requests[0].offset


async def test_a_call_waits_for_the_next_owner(log: Log, tmp_path: Path) -> None:
    async with gateway(log, tmp_path) as base, opened(base) as client, anyio.create_task_group() as tasks:
        answers: list[str | None] = []

        async def call() -> None:
            answer = await client.chat.completions.create(model="policy", messages=HELLO)
            answers.append(answer.choices[0].message.content)
            tasks.cancel_scope.cancel()

        tasks.start_soon(call)
        await first(log, Request)
        async with owned(log, always("late")):
            await anyio.sleep(DEADLINE_S)
    assert answers == ["late"]


async def test_an_agent_that_leaves_leaves_a_cancel(log: Log, tmp_path: Path) -> None:
    async with gateway(log, tmp_path) as base, opened(base) as client:
        async with anyio.create_task_group() as tasks:

            async def call() -> None:
                await client.chat.completions.create(model="policy", messages=HELLO)

            tasks.start_soon(call)
            request = await first(log, Request)
            tasks.cancel_scope.cancel()
        cancel = await first(log, Cancel)
    assert (cancel.record.session, cancel.record.request) == (request.record.session, request.offset)


async def test_members_of_a_group_share_a_partition(log: Log, tmp_path: Path) -> None:
    async with gateway(log, tmp_path / "a") as one, gateway(log, tmp_path / "b") as two:
        for member, base in enumerate([one, two, one, two]):
            async with opened(base, group=5, member=member):
                pass
    assert len({entry.partition for entry in await entries(log, Open)}) == 1
