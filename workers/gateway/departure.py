"""Noticing that a client left, without a task per call.

The ASGI way is to wait for `http.disconnect` beside the answer; the task group that this takes costs as much as the rest of the call. The
connection itself knows, so it tells the call through the request's own `state`.

Invariant: a client that leaves at any time before its answer is complete is noticed once, also before anybody watches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ON_LEAVE = "gateway.on_leave"
HAS_LEFT = "gateway.has_left"


class ClientLeft(Exception):
    """Nobody is there to be answered."""


class Protocol(HttpToolsProtocol):
    """uvicorn's connection, which also tells the current request that it was lost."""

    def on_message_complete(self) -> None:
        """A request's body is whole: read on, for only a connection that is read is known to be lost (large bodies pause the reading)."""
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client left, or the server closed."""
        super().connection_lost(exc)
        scope: Scope | None = getattr(self.cycle, "scope", None)  # there is no cycle before the first request
        if scope is None:
            return
        state = scope["state"]
        state[HAS_LEFT] = True
        on_leave = state.get(ON_LEAVE)
        if on_leave is not None:
            on_leave()


@contextmanager
def watched(scope: Scope, on_leave: Callable[[], None]) -> Iterator[None]:
    """Have `on_leave` called when the client leaves, at once if it has left already."""
    state = scope["state"]
    state[ON_LEAVE] = on_leave
    if state.get(HAS_LEFT):
        on_leave()
    try:
        yield
    finally:
        del state[ON_LEAVE]
