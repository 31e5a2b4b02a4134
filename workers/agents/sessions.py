"""Opens and closes sessions at a gateway, on behalf of agents that know nothing of them.

Invariant: a gateway that is away, or refuses for load, costs waiting and no try, however long (GatewayAway says so); one that goes on
answering with an error of its own (500) refuses. Opening twice leaves an empty session that is closed idle; closing twice is no error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import aiohttp
import anyio
import orjson

from schemas.task import Task
from workers.agents.episode import JSON, AgentSawError, Outcome
from workers.plugin import said

PAUSE_S = 0.2
"""Between two calls to a gateway that is away."""
AWAY = (408, 429, 502, 503, 504)
"""Answers that say nothing about what was asked."""
BROKEN = 500
"""May be about what was asked: asked again for the patience, and then it is the answer."""


class GatewayAway(Exception):
    """The gateway gave no answer that counts for the whole patience."""


class OpenedSession(NamedTuple):
    """A session: its id, and the base URL (ending in /v1) that reaches it."""

    id: str
    base_url: str


@dataclass(frozen=True, slots=True)
class Gateway:
    """The runner's side of a gateway. Its calls are repeated for `patience_s`; both raise alike.

    :raises AgentSawError: the gateway refused.
    :raises GatewayAway: it did not answer, or not to this.
    """

    http: aiohttp.ClientSession
    url: str
    patience_s: float

    async def open_session(self, task: Task, attempt: int) -> OpenedSession:
        """Open a session for one try at a task."""
        body = {"group": task.group, "member": task.member, "attempt": attempt, "purpose": task.purpose, "payload": task.payload}
        answer = await self._post("/v1/sessions", body, expect=201)
        return OpenedSession(answer["id"], answer["base_url"])

    async def close_session(self, session: str, outcome: Outcome) -> None:
        """Close it."""
        await self._post(f"/v1/sessions/{session}/close", {"outcome": outcome.outcome, "reward": outcome.reward}, expect=200)

    async def _post(self, path: str, body: Mapping[str, Any], *, expect: int) -> dict[str, Any]:
        until = anyio.current_time() + self.patience_s
        while True:
            try:
                return await self._post_once(path, body, expect=expect)
            except AgentSawError as error:
                if error.status not in AWAY and (error.status != BROKEN or anyio.current_time() > until):
                    raise
                seen: Exception = error
            except (aiohttp.ClientError, TimeoutError) as error:
                seen = error
            await anyio.sleep(PAUSE_S)
            if anyio.current_time() > until:
                raise GatewayAway(said(seen)) from seen

    async def _post_once(self, path: str, body: Mapping[str, Any], *, expect: int) -> dict[str, Any]:
        async with self.http.post(self.url + path, data=orjson.dumps(body), headers=JSON) as response:
            said = await response.read()
            if response.status != expect:
                raise AgentSawError(response.status, said.decode(errors="replace"))
            answer: dict[str, Any] = orjson.loads(said)
            return answer
