"""A gateway that answers every chat with the last message reversed, and remembers what it was asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class FakeGateway:
    """`refusals` are statuses that the next calls get instead, in order, by the kind of call: open, close, chat."""

    url: str = ""
    opened: list[dict[str, Any]] = field(default_factory=list)
    closed: dict[str, dict[str, Any]] = field(default_factory=dict)
    chats: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    refusals: dict[str, list[int]] = field(default_factory=dict)

    async def open(self, request: web.Request) -> web.Response:
        if (status := self._refusal("open")) is not None:
            return web.json_response({"error": {"message": "no"}}, status=status)
        self.opened.append(await request.json())
        session = f"0-{len(self.opened)}-abcdef"
        return web.json_response({"id": session, "base_url": f"{self.url}/s/{session}/v1"}, status=201)

    async def close(self, request: web.Request) -> web.Response:
        if (status := self._refusal("close")) is not None:
            return web.json_response({"error": {"message": "no"}}, status=status)
        self.closed[request.match_info["session"]] = await request.json()
        return web.json_response({})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.chats.append((request.match_info["session"], body))
        if (status := self._refusal("chat")) is not None:
            return web.json_response({"error": {"message": "no"}}, status=status)
        message = {"role": "assistant", "content": body["messages"][-1]["content"][::-1]}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response({"id": "c", "object": "chat.completion", "created": 0, "model": "policy", "choices": [choice]})

    def outcomes(self) -> list[str]:
        return sorted(body["outcome"] for body in self.closed.values())

    def _refusal(self, kind: str) -> int | None:
        left = self.refusals.get(kind, [])
        return left.pop(0) if left else None


@asynccontextmanager
async def fake_gateway() -> AsyncIterator[FakeGateway]:
    """Listening on a free port."""
    gateway = FakeGateway()
    app = web.Application()
    app.add_routes([
        web.post("/v1/sessions", gateway.open), web.post("/v1/sessions/{session}/close", gateway.close),
        web.post("/s/{session}/v1/chat/completions", gateway.chat),
    ])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        gateway.url = "http://{}:{}".format(*runner.addresses[0][:2])
        yield gateway
    finally:
        await runner.cleanup()
