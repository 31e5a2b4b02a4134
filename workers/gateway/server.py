"""Listening: the socket, the address, and uvicorn inside the role's own task group.

uvicorn keeps its tasks to itself, so a gateway that is asked to stop first tells uvicorn, which lets calls end for a while.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import uvicorn
from starlette.types import ASGIApp

from schemas.errors import SetupError
from workers.gateway.departure import Protocol

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Longer than clients keep an idle connection: whoever closes it first must not be the server, or a call that is just being sent fails."""
DISMISS_S = 2.0
"""How long dismissed calls may take to answer."""


class Server(uvicorn.Server):
    """Signals belong to the role's frame."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    :raises SetupError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise SetupError(f"cannot listen on {host}:{port}: {why}; set another host or port (0 takes a free one)") from error


def base_url(listener: socket.socket) -> str:
    """The address as a URL, without a slash at the end."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def write_address(file: Path, url: str) -> None:
    """Write the address for others to find: whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(file.suffix + ".tmp")
    temporary.write_text(url + "\n", encoding="utf-8")
    temporary.rename(file)


async def serve(app: ASGIApp, listener: socket.socket, stop: anyio.Event, drain_s: float, dismiss: Callable[[], None]) -> None:
    """Serve until `stop`; then let calls in flight end for `drain_s`, and `dismiss` the others: they are to answer and end.

    Cancelled, because another part of the gateway failed, it dismisses all at once.
    """
    config = uvicorn.Config(
        app, http=Protocol, ws="none", loop="none", lifespan="off", log_config=None, access_log=False, server_header=False,
        date_header=False, backlog=BACKLOG, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=math.ceil(drain_s + DISMISS_S),
    )
    server = Server(config)

    async def end_on_stop() -> None:
        try:
            await stop.wait()
            server.should_exit = True
            await anyio.sleep(drain_s)
        finally:
            server.should_exit = True
            dismiss()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end_on_stop)
        with anyio.CancelScope(shield=True):  # uvicorn answers calls in tasks of its own: cancelled with it, they would end as 500
            await server.serve([listener])
        tasks.cancel_scope.cancel()
