"""The yardstick answers what the real gateway answers: same session, same tokens, a second turn built upon the first."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import anyio
import pytest

from infra.bench.client import TURNS, Agents, measure
from infra.bench.direct import role
from infra.bench.engine import MAX_TOKENS
from models.chat import NumberChat
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Watch
from workers.gateway.settings import GatewaySettings

pytestmark = pytest.mark.anyio


async def test_agents_converse_with_the_engine_in_the_process(tmp_path: Path) -> None:
    NumberChat().save(tmp_path)
    settings = GatewaySettings(model_dir=tmp_path, address_file=tmp_path / "url", context_tokens=10_000)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(role(settings), Log(MemoryBroker(), "test.", "test"), Watch())
            url = (tmp_path / "url").read_text().strip()
            found = await measure(url, in_flight=3, calls=2 * TURNS + 1)
            answers = await two_turns(url)
            tasks.cancel_scope.cancel()
    assert len(found["latencies_ms"]) == 2 * TURNS + 1
    assert min(found["latencies_ms"]) >= 50.0
    assert [answer["choices"][0]["message"]["content"] for answer in answers] == ["".join(f"{index} " for index in range(MAX_TOKENS))] * 2
    first, second = (answer["usage"]["prompt_tokens"] for answer in answers)
    assert second > first + MAX_TOKENS


async def two_turns(url: str) -> list[dict]:  # type: ignore[type-arg]
    async with aiohttp.ClientSession() as http:
        agents = Agents(url, http, 0)
        session = await agents._post(f"{url}/v1/sessions", {})
        messages = [{"role": "user", "content": "one"}]
        body = {"model": "policy", "messages": messages, "max_tokens": MAX_TOKENS}
        first = await agents._post(f"{session['base_url']}/chat/completions", body)
        messages += [{"role": "assistant", "content": first["choices"][0]["message"]["content"]}, {"role": "user", "content": "two"}]
        return [first, await agents._post(f"{session['base_url']}/chat/completions", body)]
