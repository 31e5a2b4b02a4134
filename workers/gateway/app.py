"""The routes: HTTP in, problems out in OpenAI's shape.

Invariants: every answer other than success is an OpenAI error object; a body is read up to its bound and no further; nothing of a
session is answered before the log was read to the end that it had at the start.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from workers.gateway.admission import Admission
from workers.gateway.answers import answer
from workers.gateway.calls import Calls
from workers.gateway.departure import ClientLeft, watched
from workers.gateway.parameters import parse_parameters
from workers.gateway.problems import Problem, invalid, unavailable
from workers.gateway.repeats import repeat_of
from workers.gateway.sessions import MAX_BODY_BYTES, Sessions


class App:
    """The endpoints. Made once; holds no state of its own but the admission."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._sessions = Sessions(calls)
        self._settings = calls.settings
        self._admission = Admission(calls.settings.max_calls, calls.settings.max_calls_bytes)

    def starlette(self) -> Starlette:
        """The application; the busiest route first."""
        routes = [
            Route("/s/{session}/v1/chat/completions", Raw(self.chat), methods=["POST"]),
            Route("/v1/sessions", self.open_session, methods=["POST"]),
            Route("/v1/sessions/{session}/close", self.close_session, methods=["POST"]),
            Route("/v1/sessions/{session}", self.describe_session, methods=["GET"]),
            Route("/s/{session}/v1/models", self.models, methods=["GET"]),
            Route("/v1/models", self.models, methods=["GET"]),
            Route("/v1/chat/completions", self.chat_without_session, methods=["POST"]),
            Route("/healthz", self.healthy, methods=["GET"]),
            Route("/readyz", self.ready, methods=["GET"]),
            Route("/stats", self.stats, methods=["GET"]),
        ]
        handlers: dict[Any, Callable[[Request, Any], Awaitable[Response]]] = {
            Problem: _answer_problem, HTTPException: _answer_http, Exception: _answer_fault,
        }
        return Starlette(routes=routes, exception_handlers=handlers)

    async def chat(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A chat completion. Plain ASGI: this is where the time goes."""
        received = monotonic()
        self._require_caught_up()
        body = await read_body(scope, receive, self._settings.max_body_bytes)
        with self._admission.admit(len(body)):
            parameters = parse_parameters(body)
            call = await self._calls.begin(scope["path_params"]["session"], parameters, repeat_of(scope["headers"]), received)
            with call.running(), watched(scope, call.client_left), suppress(ClientLeft):
                await answer(call, self._calls.chat, parameters, send)

    async def open_session(self, request: Request) -> Response:
        """`POST /v1/sessions`."""
        self._require_caught_up()
        body = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
        base = self._settings.public_url or str(request.base_url).rstrip("/")
        return _json(await self._sessions.open(body, base), 201)

    async def close_session(self, request: Request) -> Response:
        """`POST /v1/sessions/{id}/close`."""
        self._require_caught_up()
        body = await read_body(request.scope, request.receive, MAX_BODY_BYTES)
        return _json(await self._sessions.close(request.path_params["session"], body))

    async def describe_session(self, request: Request) -> Response:
        """`GET /v1/sessions/{id}`."""
        self._require_caught_up()
        return _json(await self._sessions.describe(request.path_params["session"]))

    async def models(self, request: Request) -> Response:
        """`GET /v1/models`: the one model that is served."""
        model = {"id": self._settings.model, "object": "model", "created": 0, "owned_by": "seamlessflow"}
        return _json({"object": "list", "data": [model]})

    async def chat_without_session(self, request: Request) -> Response:
        """A call that belongs to no session."""
        raise invalid("a call needs a session: POST /v1/sessions, then use its base_url (…/s/<id>/v1)", code="session_required")

    async def healthy(self, request: Request) -> Response:
        """`GET /healthz`: the process answers."""
        return _json({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """`GET /readyz`: 200 once the log is caught up.

        Not bound to owners: during a pause or takeover a gateway must stay in rotation to hold its calls. `claimed` of `partitions`
        tells whether anybody has ever generated.
        """
        mirror = self._calls.mirror
        facts = {
            "ready": mirror.caught_up, "partitions": len(mirror.ledgers), "claimed": mirror.claimed(), "calls": self._admission.calls,
        }
        return _json(facts, 200 if mirror.caught_up else 503)

    async def stats(self, request: Request) -> Response:
        """`GET /stats`: calls answered, and what the last of them cost beyond the engine's time, ms."""
        latency = self._calls.latency
        return _json({"calls": latency.calls, "added_latency_ms": latency.figures()})

    def _require_caught_up(self) -> None:
        if not self._calls.mirror.caught_up:
            raise unavailable("this gateway is still reading the log")


class Raw:
    """An ASGI endpoint: Starlette calls functions with a Request, and objects as applications."""

    def __init__(self, endpoint: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._endpoint(scope, receive, send)


async def read_body(scope: Scope, receive: Receive, limit_bytes: int) -> bytes:
    """The body of a request.

    :raises Problem: 413, it is larger than the bound; 400, its sender left.
    """
    declared = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise invalid("the client left before its body was read")
        part: bytes = message.get("body", b"")
        body += part
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        if not message.get("more_body", False):
            return body


async def _answer_problem(request: Request, problem: Problem) -> Response:
    return Response(problem.body(), problem.status, {**problem.headers()}, "application/json")


async def _answer_http(request: Request, error: HTTPException) -> Response:
    """What Starlette itself refuses: an unknown path, a method that a path does not have."""
    code = "not_found" if error.status_code == 404 else "invalid_request"
    problem = Problem(error.status_code, code, f"{request.url.path}: {error.detail}")
    return Response(problem.body(), problem.status, error.headers, "application/json")


async def _answer_fault(request: Request, error: Exception) -> Response:
    """A fault of this software: Starlette raises it again after the answer, so that it is logged."""
    problem = Problem(500, "internal_error", f"{type(error).__name__}: see the gateway's log")
    return Response(problem.body(), problem.status, media_type="application/json")


def _too_large(limit_bytes: int) -> Problem:
    return Problem(413, "body_too_large", f"the body is larger than {limit_bytes} bytes")


def _json(content: dict[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
