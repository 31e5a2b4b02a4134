"""What goes wrong with a call, as HTTP status and OpenAI's error object. Pure.

Invariant: clients retry 408, 409, 429 and 5xx by themselves, so only what may succeed when it is tried again has one of these.
"""

from __future__ import annotations

from typing import Any

import orjson

RETRY_AFTER_S = 1
"""What a refused client is told to wait."""


class Problem(Exception):
    """An answer other than success. `code` is for programs, `message` for people; `param` names the part of the body at fault."""

    def __init__(self, status: int, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param

    def body(self) -> bytes:
        """`{"error": {message, type, param, code}}`."""
        return orjson.dumps(self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The body before it is JSON."""
        kind = "server_error" if self.status >= 500 else _KINDS.get(self.status, "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def headers(self) -> dict[str, str]:
        """`Retry-After` where trying again may help."""
        return {"retry-after": str(RETRY_AFTER_S)} if self.status in (429, 503) else {}


_KINDS = {429: "rate_limit_error", 422: "request_failed"}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> Problem:
    """400: the body is wrong."""
    return Problem(400, code, message, param)


def unsupported(param: str) -> Problem:
    """400: the parameter would change the result, and this gateway cannot do it."""
    return Problem(400, "unsupported_parameter", f"{param} is not supported: leave it out, or at its neutral value", param)


def unknown_session(text: str) -> Problem:
    """404: no such session."""
    return Problem(404, "session_not_found", f"there is no session {text!r}; POST /v1/sessions opens one")


def session_ended(text: str) -> Problem:
    """410: the session was closed, by its runner, for idleness, or for age."""
    return Problem(410, "session_closed", f"session {text} is closed; POST /v1/sessions opens another one")


def unavailable(message: str) -> Problem:
    """503: try again."""
    return Problem(503, "unavailable", message)


def overloaded(message: str) -> Problem:
    """429: try again when there is room."""
    return Problem(429, "overloaded", message)


def key_reused() -> Problem:
    """422: a call of this session has the same Idempotency-Key and other contents."""
    return Problem(422, "idempotency_key_reused", "another call of this session had this Idempotency-Key: use a new one for each call")


def failed(detail: str) -> Problem:
    """422: this request failed for good, and would fail again."""
    return Problem(422, "request_failed", f"the request failed: {detail or 'no reason was recorded'}")


def cancelled(detail: str) -> Problem:
    """422: somebody cancelled the request."""
    return Problem(422, "request_cancelled", f"the request was cancelled: {detail}")
