"""Agents that drive sessions through a gateway by HTTP, and keep what they were answered, so that it can be compared with the log.

A gateway that dies breaks connections: the agent calls again, as real ones do. Nothing else is tried twice: any answer but success ends
the test.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anyio
import orjson
from anyio.abc import TaskGroup

from schemas.identity import SessionId
from tests.flow.seen import DEADLINE_S, Key, Seen, require_unbroken

RETRY_S = 0.1
UNAVAILABLE = 503


@dataclass
class Answer:
    """One call: what came, and of which request. `is_whole`: the answer came to its end."""

    session: Key
    request: Key
    count: int
    text: str = ""
    is_whole: bool = False

    @property
    def tokens(self) -> list[int]:
        """The token ids that the text names."""
        return [int(number) for number in self.text.split()]


@dataclass
class Work:
    """Agents at work. `broken` counts calls that a dying gateway did not answer."""

    http: aiohttp.ClientSession
    url: str
    tasks: TaskGroup
    tokens: int
    turns: int
    answers: list[Answer] = field(default_factory=list)
    closed: list[Key] = field(default_factory=list)
    broken: int = 0

    def start(self, agents: int) -> None:
        """Let so many agents begin; every second one streams."""
        for number in range(agents):
            self.tasks.start_soon(self._episode, number)

    async def _episode(self, number: int) -> None:
        opened = await self._post("/v1/sessions", {"member": number}, expected=201)
        place = SessionId.parse(opened["id"])
        session = Key(place.partition, place.offset)
        messages = [{"role": "user", "content": f"agent {number}"}]
        for turn in range(self.turns):
            body = {"messages": messages, "max_tokens": self.tokens, "stream": bool((number + turn) % 2)}
            answer = await self._call(session, f"/s/{opened['id']}/v1/chat/completions", body)
            messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": f"turn {turn}"}]
        await self._post(f"/v1/sessions/{opened['id']}/close", {}, expected=200)
        self.closed.append(session)

    async def _call(self, session: Key, path: str, body: dict[str, Any]) -> Answer:
        while True:
            try:
                return await self._try(session, path, body)
            except (aiohttp.ClientError, ConnectionError):
                self.broken += 1
                await anyio.sleep(RETRY_S)

    async def _try(self, session: Key, path: str, body: dict[str, Any]) -> Answer:
        async with self.http.post(self.url + path, json=body) as response:
            if response.status == UNAVAILABLE:  # a gateway that reads the log to its end first
                raise aiohttp.ClientError(await response.text())
            assert response.status == 200, await response.text()
            if body["stream"]:
                return await self._streamed(session, response)
            said = orjson.loads(await response.read())
        answer = self._begin(session, said)
        answer.text, answer.is_whole = said["choices"][0]["message"]["content"], True
        return answer

    async def _streamed(self, session: Key, response: aiohttp.ClientResponse) -> Answer:
        answer = None
        async for line in response.content:
            event = line.strip().removeprefix(b"data: ")
            if not line.startswith(b"data: ") or event == b"[DONE]":
                continue
            said = orjson.loads(event)
            if said.get("error", {}).get("code") == "unavailable":  # a gateway that ends in mid-stream
                raise aiohttp.ClientError(said["error"]["message"])
            assert "error" not in said, said
            answer = answer or self._begin(session, said)
            answer.text += said["choices"][0]["delta"].get("content") or ""
            answer.is_whole = said["choices"][0]["finish_reason"] is not None
        if answer is None or not answer.is_whole:
            raise aiohttp.ClientError("the stream ended early")
        return answer

    def _begin(self, session: Key, said: dict[str, Any]) -> Answer:
        partition, request = map(int, said["id"].split("-")[1:])
        answer = Answer(session, Key(partition, request), self.tokens)
        self.answers.append(answer)
        return answer

    async def _post(self, path: str, body: dict[str, Any], *, expected: int) -> dict[str, Any]:
        while True:
            try:
                async with self.http.post(self.url + path, json=body) as response:
                    said = await response.read()
                    if response.status != UNAVAILABLE:
                        assert response.status == expected, said
                        answer: dict[str, Any] = orjson.loads(said)
                        return answer
            except (aiohttp.ClientError, ConnectionError):
                pass
            self.broken += 1
            await anyio.sleep(RETRY_S)


@asynccontextmanager
async def at_work(url: str, agents: int = 6, *, tokens: int = 100, turns: int = 2) -> AsyncIterator[Work]:
    """Agents at work. Leaving waits until they are through."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    with anyio.fail_after(2 * DEADLINE_S):
        async with aiohttp.ClientSession(timeout=timeout) as http, anyio.create_task_group() as tasks:
            work = Work(http, url, tasks, tokens, turns)
            work.start(agents)
            yield work


def require_answers(work: Work, seen: Seen) -> None:
    """What agents were shown is what the log says, and each whole answer holds every token once."""
    for answer in work.answers:
        logged = seen.request(answer.request)
        assert logged.end is not None
        if answer.is_whole:
            require_unbroken(answer.tokens, answer.count)
            assert answer.tokens == logged.token_ids()
        else:
            assert answer.tokens == logged.token_ids()[: len(answer.tokens)]
