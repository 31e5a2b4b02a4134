"""Opens and closes sessions at a gateway, on behalf of agents that know nothing of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import aiohttp
import orjson

from schemas.task import Task
from workers.agents.episode import JSON, AgentSawError, Outcome


class OpenedSession(NamedTuple):
    """A session: its id, and the base URL (ending in /v1) that reaches it."""

    id: str
    base_url: str


async def open_session(http: aiohttp.ClientSession, gateway_url: str, task: Task, attempt: int) -> OpenedSession:
    """Open a session for one try at a task.

    :raises AgentSawError: the gateway refused.
    :raises aiohttp.ClientError: it did not answer.
    """
    body = {"group": task.group, "member": task.member, "attempt": attempt, "purpose": task.purpose, "payload": task.payload}
    answer = await _post(http, f"{gateway_url}/v1/sessions", body, expect=201)
    return OpenedSession(answer["id"], answer["base_url"])


async def close_session(http: aiohttp.ClientSession, gateway_url: str, session: str, outcome: Outcome) -> None:
    """Close it; closing twice is no error.

    :raises AgentSawError: the gateway refused.
    :raises aiohttp.ClientError: it did not answer.
    """
    await _post(http, f"{gateway_url}/v1/sessions/{session}/close", {"outcome": outcome.outcome, "reward": outcome.reward}, expect=200)


async def _post(http: aiohttp.ClientSession, url: str, body: dict[str, Any], *, expect: int) -> dict[str, Any]:
    async with http.post(url, data=orjson.dumps(body), headers=JSON) as response:
        said = await response.read()
        if response.status != expect:
            raise AgentSawError(response.status, said.decode(errors="replace"))
        answer: dict[str, Any] = orjson.loads(said)
        return answer
