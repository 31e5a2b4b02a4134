"""A TCP proxy in front of each broker, on the port that the broker advertises: passes bytes on, and makes the faults of a network.

It runs in a thread of its own, so that a blocked test does not freeze the cluster. Controls may be used from any thread.

Invariants: bytes of one direction of a connection arrive complete and in order, whatever is set, or the connection breaks; a request that
was taken from a client reaches the broker in the end, even if its client is gone by then, unless the connection is reset.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

import anyio
from anyio.abc import Listener, SocketAttribute, SocketStream, TaskGroup
from anyio.from_thread import BlockingPortal, start_blocking_portal
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.memory import MemoryObjectSendStream

HOST = "127.0.0.1"
END_TXN = 26
QUEUED = 64
"""Pieces under way in one direction of a connection: with a latency, more are on the wire than one."""

GONE = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, anyio.IncompleteRead, OSError)


@dataclass(frozen=True, slots=True)
class Way:
    """How one direction behaves. `is_open`: bytes pass; else they wait, as behind a dead route, and arrive late when it opens again.

    `latency_s`: seconds from here to there. `single_bytes`: so many bytes at the beginning of each piece go one by one: there a message
    says how long it is, and whose answer.
    """

    is_open: bool = True
    latency_s: float = 0.0
    single_bytes: int = 0

    def split(self, piece: bytes) -> Iterator[bytes]:
        """A piece as it is to go on."""
        for index in range(min(self.single_bytes, len(piece))):
            yield piece[index : index + 1]
        if rest := piece[self.single_bytes :]:
            yield rest


Felt = Literal["refused", "held back", "delayed", "split"]
"""What a fault does: to a connection that is refused, and to a piece of what passes."""

FAIR = Way()
CLOSED = Way(is_open=False)


class Call(NamedTuple):
    """What the header of a Kafka request tells."""

    api_key: int
    client_id: str

    @staticmethod
    def of(frame: bytes) -> Call:
        """Read a frame: length, API key, version, correlation id, client id."""
        api_key, _, _, length = struct.unpack_from(">hhih", frame, 4)
        return Call(api_key, frame[14 : 14 + max(length, 0)].decode())


class Hold:
    """Requests of one kind that wait in the proxy until they are released. `calls`: those that came. `delivered`: how many went on."""

    def __init__(self, matches: Callable[[Call], bool]) -> None:
        self.matches = matches
        self.calls: list[Call] = []
        self.delivered = 0
        self.released = anyio.Event()


class Proxy:
    """One port. Only for the loop that it runs in; others use `Network`."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._changed = anyio.Event()
        self._connections: dict[anyio.CancelScope, tuple[SocketStream, ...]] = {}
        self.requests, self.answers = FAIR, FAIR
        self.is_cut = False
        self.holds: list[Hold] = []
        self.felt: Counter[Felt] = Counter()

    def change(self, requests: Way, answers: Way) -> None:
        """Set both directions, for connections that are and that come."""
        self.requests, self.answers = requests, answers
        self._changed.set()
        self._changed = anyio.Event()

    def reset(self) -> int:
        """End every connection with RST; bytes under way are lost. Answers how many there were."""
        for scope, streams in self._connections.items():
            for stream in streams:
                _abort(stream)
            scope.cancel()
        return len(self._connections)

    def forget(self, hold: Hold) -> None:
        """Hold such requests no more."""
        if hold in self.holds:
            self.holds.remove(hold)

    async def serve(self, client: SocketStream) -> None:
        """The life of one connection."""
        async with client:
            try:
                if self.is_cut:
                    self.felt["refused"] += 1
                    raise ConnectionRefusedError
                broker = await anyio.connect_tcp(HOST, self._target)
            except OSError:
                _abort(client)
                return
            with anyio.CancelScope() as scope:
                self._connections[scope] = (client, broker)
                try:
                    await self._join(client, broker)
                finally:
                    del self._connections[scope]

    async def _join(self, client: SocketStream, broker: SocketStream) -> None:
        async with broker, anyio.create_task_group() as tasks:
            tasks.start_soon(self._ask, client, broker, tasks)
            tasks.start_soon(self._answer, broker, client, tasks)

    async def _ask(self, client: SocketStream, broker: SocketStream, tasks: TaskGroup) -> None:
        """Ends the connection when the client ended and all that it asked was delivered, or when the broker takes no more."""
        queue, due = anyio.create_memory_object_stream[tuple[float, bytes]](QUEUED)
        tasks.start_soon(self._take_in, _frames(client), queue, lambda: self.requests)
        with due, suppress(*GONE):
            async for at, frame in due:
                await anyio.sleep_until(at)
                held = await self._wait_while_held(frame)
                await self._send(frame, broker, lambda: self.requests)
                for hold in held:
                    hold.delivered += 1
        tasks.cancel_scope.cancel()

    async def _answer(self, broker: SocketStream, client: SocketStream, tasks: TaskGroup) -> None:
        """Ends the connection when the broker ended. A client that is gone has its last requests delivered all the same."""
        queue, due = anyio.create_memory_object_stream[tuple[float, bytes]](QUEUED)
        tasks.start_soon(self._take_in, _chunks(broker), queue, lambda: self.answers)
        with due, suppress(*GONE):
            async for at, chunk in due:
                await anyio.sleep_until(at)
                await self._send(chunk, client, lambda: self.answers)
            tasks.cancel_scope.cancel()

    async def _send(self, piece: bytes, sink: SocketStream, way: Callable[[], Way]) -> None:
        self.felt["split"] += bool(way().single_bytes)
        for part in way().split(piece):
            self.felt["held back"] += not way().is_open
            while not way().is_open:
                await self._changed.wait()
            await sink.send(part)

    async def _take_in(
        self, pieces: AsyncIterator[bytes], queue: MemoryObjectSendStream[tuple[float, bytes]], way: Callable[[], Way]
    ) -> None:
        with queue, suppress(*GONE):
            async for piece in pieces:
                self.felt["delayed"] += bool(way().latency_s)
                await queue.send((anyio.current_time() + way().latency_s, piece))

    async def _wait_while_held(self, frame: bytes) -> list[Hold]:
        if not self.holds:
            return []
        call = Call.of(frame)
        matching = [hold for hold in self.holds if hold.matches(call)]
        for hold in matching:
            hold.calls.append(call)
            await hold.released.wait()
        return matching


async def _frames(stream: SocketStream) -> AsyncIterator[bytes]:
    """Whole requests: four bytes of length, then the rest. One that its client did not finish is nothing to a broker."""
    buffered = BufferedByteReceiveStream(stream)
    while True:
        head = await buffered.receive_exactly(4)
        yield head + await buffered.receive_exactly(int.from_bytes(head, "big"))


async def _chunks(stream: SocketStream) -> AsyncIterator[bytes]:
    async for chunk in stream:
        yield chunk


def _abort(stream: SocketStream) -> None:
    """Let the coming close send RST."""
    with suppress(OSError):
        stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Network:
    """The proxies of a cluster, in the order of its nodes. Made by `open_network`. `node` counts from 1; None: all of them."""

    def __init__(self, portal: BlockingPortal, proxies: Sequence[Proxy]) -> None:
        self._portal = portal
        self._proxies = proxies

    @property
    def ports(self) -> list[int]:
        """Where the proxies listen."""
        return [proxy.port for proxy in self._proxies]

    def change(self, node: int | None = None, *, requests: Way = FAIR, answers: Way = FAIR) -> None:
        """Set both directions; without arguments all is fair again."""
        for proxy in self._chosen(node):
            self._portal.call(proxy.change, requests, answers)

    @property
    def felt(self) -> Counter[Felt]:
        """What its faults have done so far."""
        return sum((proxy.felt for proxy in self._proxies), Counter())

    def reset(self, node: int | None = None) -> int:
        """End every connection with RST; new ones may come. Answers how many there were."""
        return sum(self._portal.call(proxy.reset) for proxy in self._chosen(node))

    def cut(self, node: int | None = None) -> None:
        """End every connection, and refuse new ones until `mend`."""
        for proxy in self._chosen(node):
            proxy.is_cut = True
        self.reset(node)

    def mend(self) -> None:
        """No fault any more, in any direction; nothing is held."""
        for proxy in self._proxies:
            proxy.is_cut = False
            for hold in list(proxy.holds):
                self.release(hold)
        self.change()

    def hold(self, matches: Callable[[Call], bool]) -> Hold:
        """Keep the requests that match, whatever node they are for, and all that follow on their connections, until `release`."""
        hold = Hold(matches)
        for proxy in self._proxies:
            self._portal.call(proxy.holds.append, hold)
        return hold

    def catch_no_more(self, hold: Hold) -> None:
        """Keep what was caught, and let those that come now pass."""
        for proxy in self._proxies:
            self._portal.call(proxy.forget, hold)

    def release(self, hold: Hold) -> None:
        """Deliver what was held, and hold no more."""
        self.catch_no_more(hold)
        self._portal.call(hold.released.set)

    def _chosen(self, node: int | None) -> Sequence[Proxy]:
        return self._proxies if node is None else self._proxies[node - 1 : node]


@asynccontextmanager
async def open_proxies(routes: Sequence[tuple[int, int]]) -> AsyncIterator[list[Proxy]]:
    """A proxy for each (port to listen on, 0: a free one; port of the broker)."""
    proxies = []
    async with anyio.create_task_group() as tasks:
        for port, target in routes:
            listener = await anyio.create_tcp_listener(local_host=HOST, local_port=port)
            proxy = Proxy(listener.extra(SocketAttribute.local_port), target)
            tasks.start_soon(_serve, listener, proxy)
            proxies.append(proxy)
        yield proxies
        tasks.cancel_scope.cancel()


async def _serve(listener: Listener[SocketStream], proxy: Proxy) -> None:
    async with listener:
        await listener.serve(proxy.serve)


@contextmanager
def open_network(routes: Sequence[tuple[int, int]]) -> Iterator[Network]:
    """The proxies in a thread of their own, for the length of a context."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(open_proxies(routes)) as proxies:
        yield Network(portal, proxies)
