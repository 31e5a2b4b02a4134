"""HTTP without sockets: gateways listen, agents call one of them, and what every agent is answered is kept for the checker.

Invariants: a gateway that dies breaks its connections at once; one that is frozen holds them; an agent that leaves is noticed by the
gateway as by a real server (`workers.gateway.departure`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import anyio
import anyio.abc
from starlette.requests import Request
from starlette.responses import Response

from tests.simulation.cluster import Cluster
from workers.gateway.app import App
from workers.gateway.departure import HAS_LEFT, ON_LEAVE
from workers.gateway.problems import Problem
from workers.gateway.settings import GatewaySettings

DISMISS_S = 2.0
"""As the server's own: how long dismissed calls may take to answer."""
CALL_S = 8.0
"""How long a client waits for an answer."""


class Shown(NamedTuple):
    """Bytes that an agent was shown, and where the partitions of `sessions` ended at that moment."""

    exchange: int
    ends: dict[int, int]
    body: bytes


class DirectApp(App):
    """The gateway's application without the routes of its web framework."""

    def starlette(self) -> DirectApp:  # type: ignore[override]
        """Itself: `Port` calls the endpoints."""
        return self


@dataclass
class Exchange:
    """One call of a client. `state` is what server and connection share."""

    number: int
    path: str
    body: bytes
    state: dict[str, Any] = field(default_factory=dict)
    status: asyncio.Future[int] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    whole: asyncio.Future[bytes] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    said: bytes = b""

    def fail(self) -> None:
        """The connection breaks."""
        for future in (self.status, self.whole):
            if not future.done():
                future.set_exception(aiohttp.ClientConnectionError("the connection broke"))
                future.exception()  # nobody has to look at it

    def leave(self) -> None:
        """The client leaves."""
        if not self.whole.done():
            self.state[HAS_LEFT] = True
            on_leave = self.state.get(ON_LEAVE)
            if on_leave is not None:
                on_leave()


@dataclass
class Port:
    """Where one life of a gateway listens. `gate` is closed while its process is frozen."""

    network: Network
    app: DirectApp | None = None
    tasks: anyio.abc.TaskGroup | None = None
    open_exchanges: dict[int, Exchange] = field(default_factory=dict)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, app: DirectApp, stop: anyio.Event, drain_s: float, dismiss: Callable[[], None]) -> None:
        """What `workers.gateway.server.serve` does."""
        async with anyio.create_task_group() as self.tasks:
            self.app = app
            self.gate.set()
            try:
                await stop.wait()
            finally:
                self.app = None
            for patience_s, then in ((drain_s, dismiss), (DISMISS_S, lambda: None)):
                with anyio.move_on_after(patience_s):
                    await self._until_idle()
                then()
            self.tasks.cancel_scope.cancel()

    async def _until_idle(self) -> None:
        while self.open_exchanges:
            self.idle = asyncio.Event()
            await self.idle.wait()

    def break_all(self) -> None:
        """The process died."""
        self.app = None
        for exchange in list(self.open_exchanges.values()):
            exchange.fail()

    def accept(self, exchange: Exchange) -> None:
        """A client calls.

        :raises aiohttp.ClientConnectionError: nobody listens.
        """
        if self.app is None or self.tasks is None:
            raise aiohttp.ClientConnectionError("nobody listens")
        self.open_exchanges[exchange.number] = exchange
        self.tasks.start_soon(self._handle, self.app, exchange)

    async def _handle(self, app: DirectApp, exchange: Exchange) -> None:
        try:
            await self.gate.wait()
            await self._answer(app, exchange)
        finally:
            exchange.fail()  # a server that ends without an answer closes the connection
            self.open_exchanges.pop(exchange.number, None)
            self.idle.set()

    async def _answer(self, app: DirectApp, exchange: Exchange) -> None:
        parts = urlsplit(exchange.path).path.split("/")
        params = {"session": parts[2] if parts[1] == "s" else parts[3] if len(parts) > 3 else ""}
        scope = {"type": "http", "path": exchange.path, "path_params": params, "headers": [], "state": exchange.state}

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": exchange.body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            await self.gate.wait()
            self._say(exchange, message)

        try:
            if parts[1] == "s":
                await app.chat(scope, receive, send)
            else:
                request = Request(scope, receive)
                response: Response = await (app.open_session if len(parts) == 3 else app.close_session)(request)
                await send({"type": "http.response.start", "status": response.status_code})
                await send({"type": "http.response.body", "body": response.body})
        except Problem as problem:
            await send({"type": "http.response.start", "status": problem.status})
            await send({"type": "http.response.body", "body": problem.body()})

    def _say(self, exchange: Exchange, message: MutableMapping[str, Any]) -> None:
        if exchange.whole.done():
            return
        if message["type"] == "http.response.start":
            if not exchange.status.done():
                exchange.status.set_result(message["status"])
            return
        exchange.said += message["body"]
        self.network.show(exchange, message["body"])
        if not message.get("more_body", False):
            exchange.whole.set_result(exchange.said)


@dataclass
class PortOf:
    """See `tests.simulation.process.Address`."""

    ports: dict[str, Port]
    name: str

    def break_all(self) -> None:
        """The gateway died."""
        if self.name in self.ports:
            self.ports[self.name].break_all()

    def hold(self) -> None:
        """It is frozen."""
        if self.name in self.ports:
            self.ports[self.name].gate.clear()

    def release(self) -> None:
        """It thaws."""
        if self.name in self.ports:
            self.ports[self.name].gate.set()


class Reply:
    """A client's call: `async with` begins it; leaving early is leaving the server."""

    def __init__(self, network: Network, exchange: Exchange) -> None:
        self._network, self._exchange = network, exchange
        self.status = 0

    async def __aenter__(self) -> Reply:
        try:
            async with asyncio.timeout(CALL_S):
                self._network.pick().accept(self._exchange)
                self.status = await self._exchange.status
        except BaseException:
            self._exchange.leave()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._exchange.leave()

    async def read(self) -> bytes:
        """The whole body.

        :raises aiohttp.ClientConnectionError: the connection broke.
        :raises TimeoutError: it took too long.
        """
        async with asyncio.timeout(CALL_S):
            return await asyncio.shield(self._exchange.whole)


class Network:
    """The gateways that listen, and what agents were shown."""

    def __init__(self, cluster: Cluster, sessions: str, seed: str, strike: Callable[[str], None]) -> None:
        self._cluster, self._sessions, self.strike = cluster, sessions, strike
        self._chance = random.Random(f"{seed} network")
        self._ports: dict[str, Port] = {}
        self._numbers = 0
        self.shown: list[Shown] = []

    def address(self, name: str) -> PortOf:
        """The newest port of a gateway, whichever that will be."""
        return PortOf(self._ports, name)

    @contextmanager
    def listening(self, settings: GatewaySettings) -> Iterator[Port]:
        """A port for one life of the gateway of this name."""
        port = self._ports[settings.name] = Port(self)
        yield port

    async def serve(self, app: DirectApp, port: Port, stop: anyio.Event, drain_s: float, dismiss: Callable[[], None]) -> None:
        """Serve at a port until `stop`."""
        await port.serve(app, stop, drain_s, dismiss)

    def pick(self) -> Port:
        """One that is listened at, by chance.

        :raises aiohttp.ClientConnectionError: there is none.
        """
        ports = [port for port in self._ports.values() if port.app is not None]
        if not ports:
            raise aiohttp.ClientConnectionError("no gateway listens")
        return ports[self._chance.randrange(len(ports))]

    def post(self, url: str, data: bytes = b"", headers: object = None) -> Reply:
        """Call a gateway, whichever."""
        self._numbers += 1
        return Reply(self, Exchange(self._numbers, urlsplit(url).path, data))

    def show(self, exchange: Exchange, body: bytes) -> None:
        """Keep what an agent is shown."""
        if exchange.path.startswith("/s/"):
            ends = {
                place.partition: self._cluster.log(place).end(committed=False)
                for place in self._cluster.places if place.topic == self._sessions
            }  # fmt: skip
            self.shown.append(Shown(exchange.number, ends, body))
