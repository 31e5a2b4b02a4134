"""From a call to bytes: a whole answer, or server-sent events. Plain ASGI messages; this is where the time goes.

Invariants: a problem before the first byte has its own status, a later one is an event of the stream; a stream that went well ends in
`[DONE]`, one that did not never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.types import Send

from models.chat import Chat
from workers.gateway.calls import Call
from workers.gateway.completions import DONE, KEEPALIVE, Chunks, completion
from workers.gateway.parameters import Parameters
from workers.gateway.problems import Problem
from workers.ledger import RequestState

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON: RawHeaders = [(b"content-type", b"application/json")]
EVENTS: RawHeaders = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]


async def answer(call: Call, chat: Chat, parameters: Parameters, send: Send) -> None:
    """Write the Request, wait for what the log says of it, answer.

    :raises ClientLeft: nobody is there to be answered.
    """
    stream = _Stream(call, chat, parameters, send)
    try:
        await call.write()
        if parameters.stream:
            await stream.run()
        else:
            request = await call.end()
            content = completion(chat, call.heading(request), logprobs=parameters.logprobs, timing_ms=call.timing_ms())
            await _send_whole(send, 200, JSON, orjson.dumps(content))
    except Problem as problem:
        if stream.is_begun:
            await stream.send_part(_event(problem.to_dict()), last=True)
        else:
            await _send_problem(send, problem)


class _Stream:
    """One streamed answer. It begins with the first news, or with the first silence that a connection would not survive."""

    def __init__(self, call: Call, chat: Chat, parameters: Parameters, send: Send) -> None:
        self._call, self._chat, self._parameters, self._send = call, chat, parameters, send
        self._chunks: Chunks | None = None
        self.is_begun = False

    async def run(self) -> None:
        """Send all of it.

        :raises Problem: what `Call.parts` raises.
        """
        async for request in self._call.parts():
            await self._begin()
            await self.send_part(KEEPALIVE if request is None else self._news(request))
        await self.send_part(self._ending(), last=True)

    async def send_part(self, body: bytes, *, last: bool = False) -> None:
        """Send bytes, if there are any."""
        if body or last:
            await self._send({"type": "http.response.body", "body": body, "more_body": not last})

    async def _begin(self) -> None:
        if not self.is_begun:
            self.is_begun = True
            await self._send({"type": "http.response.start", "status": 200, "headers": EVENTS})

    def _news(self, request: RequestState) -> bytes:
        opening = b""
        if self._chunks is None:
            self._chunks = Chunks(self._chat, self._call.heading(request), self._parameters.logprobs, self._parameters.include_usage)
            opening = _event(self._chunks.opening())
        news = self._chunks.news()
        return opening if news is None else opening + _event(news)

    def _ending(self) -> bytes:
        assert self._chunks is not None
        usage = _event(self._chunks.usage()) if self._parameters.include_usage else b""
        return _event(self._chunks.closing(self._call.timing_ms())) + usage + DONE


def _event(content: dict[str, Any]) -> bytes:
    data: bytes = orjson.dumps(content)
    return b"data: " + data + b"\n\n"


async def _send_problem(send: Send, problem: Problem) -> None:
    extra = [(name.encode(), value.encode()) for name, value in problem.headers().items()]
    await _send_whole(send, problem.status, [*JSON, *extra], problem.body())


async def _send_whole(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    size = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [*headers, size]})
    await send({"type": "http.response.body", "body": body})
