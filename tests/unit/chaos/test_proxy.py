"""The network proxy, between plain sockets: a broker that answers each request with its body, and a client that writes frames."""

from __future__ import annotations

import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio
import pytest
from anyio.abc import SocketAttribute, SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream

from tests.chaos.proxy import CLOSED, END_TXN, FAIR, GONE, HOST, Hold, Proxy, Way, open_network, open_proxies

pytestmark = pytest.mark.anyio

DEADLINE_S = 30.0
FETCH = 1


def frame(body: bytes, api_key: int = FETCH, client: str = "c") -> bytes:
    """A request as Kafka frames it: length, API key, version, correlation id, client id, and a body."""
    rest = struct.pack(">hhih", api_key, 0, 7, len(client)) + client.encode() + body
    return struct.pack(">i", len(rest)) + rest


class Echo:
    """A broker: what it received, and in which pieces."""

    def __init__(self) -> None:
        self.received = b""
        self.reads: list[int] = []
        self.changed = anyio.Event()

    async def serve(self, stream: SocketStream) -> None:
        async with stream:
            with suppress(*GONE):
                await self._answer(stream)

    async def _answer(self, stream: SocketStream) -> None:
        async for chunk in stream:
            self.received += chunk
            self.reads.append(len(chunk))
            self.changed.set()
            self.changed = anyio.Event()
            await stream.send(chunk)

    async def has(self, wanted: bytes) -> None:
        while self.received != wanted:
            await self.changed.wait()


@asynccontextmanager
async def between() -> AsyncIterator[tuple[int, Proxy, Echo]]:
    """The proxy's port, the proxy, and the broker behind it."""
    echo = Echo()
    listener = await anyio.create_tcp_listener(local_host=HOST)
    with anyio.fail_after(DEADLINE_S):
        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, echo.serve)
            async with open_proxies([(0, listener.extra(SocketAttribute.local_port))]) as proxies:
                yield proxies[0].port, proxies[0], echo
            tasks.cancel_scope.cancel()


async def read_for_ever(client: SocketStream) -> None:
    while True:
        await client.receive()


async def test_bytes_pass_both_ways_whole_and_in_order() -> None:
    wanted = b"".join(frame(bytes([number]) * 10_000) for number in range(100))
    async with between() as (port, _, _), await anyio.connect_tcp(HOST, port) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(client.send, wanted)
        assert await BufferedByteReceiveStream(client).receive_exactly(len(wanted)) == wanted


async def test_a_closed_way_delivers_late_and_the_other_way_stays_open() -> None:
    async with between() as (port, proxy, echo), await anyio.connect_tcp(HOST, port) as client:
        proxy.change(FAIR, CLOSED)
        await client.send(frame(b"a"))
        await echo.has(frame(b"a"))
        proxy.change(CLOSED, FAIR)
        assert await BufferedByteReceiveStream(client).receive_exactly(len(frame(b"a"))) == frame(b"a")
        await client.send(frame(b"b"))
        await anyio.wait_all_tasks_blocked()
        assert echo.received == frame(b"a")
        proxy.change(FAIR, FAIR)
        await echo.has(frame(b"a") + frame(b"b"))
        assert proxy.felt["held back"] >= 1


async def test_a_latency_delays_without_holding_up() -> None:
    """Ten requests in a row are under way together: all are there after one latency of each way, not after ten."""
    wanted = b"".join(frame(b"%d" % number) for number in range(10))
    async with between() as (port, proxy, _), await anyio.connect_tcp(HOST, port) as client:
        proxy.change(Way(latency_s=0.5), Way(latency_s=0.5))
        began = anyio.current_time()
        await client.send(wanted)
        assert await BufferedByteReceiveStream(client).receive_exactly(len(wanted)) == wanted
        assert anyio.current_time() - began >= 1.0
        assert proxy.felt["delayed"] >= 10 + 1


async def test_slices_arrive_whole() -> None:
    async with between() as (port, proxy, echo), await anyio.connect_tcp(HOST, port) as client:
        proxy.change(Way(single_bytes=8), Way(single_bytes=8))
        await client.send(frame(b"sliced"))
        assert await BufferedByteReceiveStream(client).receive_exactly(len(frame(b"sliced"))) == frame(b"sliced")
        assert len(echo.reads) > 1
        assert proxy.felt["split"] >= 2
    assert list(Way(single_bytes=2).split(b"abcd")) == [b"a", b"b", b"cd"]
    assert list(Way(single_bytes=9).split(b"ab")) == [b"a", b"b"]
    assert list(FAIR.split(b"abcd")) == [b"abcd"]


async def test_a_reset_breaks_what_is_open_and_lets_others_come() -> None:
    async with between() as (port, proxy, echo):
        async with await anyio.connect_tcp(HOST, port) as client:
            await client.send(frame(b"a"))
            await echo.has(frame(b"a"))
            proxy.reset()
            with pytest.raises(GONE):
                await read_for_ever(client)
        async with await anyio.connect_tcp(HOST, port) as client:
            await client.send(frame(b"b"))
            await echo.has(frame(b"a") + frame(b"b"))


async def test_a_cut_port_lets_nobody_through() -> None:
    async with between() as (port, proxy, echo):
        proxy.is_cut = True
        async with await anyio.connect_tcp(HOST, port) as client:
            with pytest.raises(GONE):
                await read_for_ever(client)
        assert not echo.received
        assert proxy.felt == {"refused": 1}


async def test_a_broker_that_is_away_is_a_broken_connection() -> None:
    listener = await anyio.create_tcp_listener(local_host=HOST)
    port = listener.extra(SocketAttribute.local_port)
    await listener.aclose()
    async with open_proxies([(0, port)]) as (proxy,), await anyio.connect_tcp(HOST, proxy.port) as client:
        with anyio.fail_after(DEADLINE_S), pytest.raises(GONE):
            await client.receive()


async def test_a_held_request_reaches_the_broker_after_its_client_is_gone() -> None:
    async with between() as (port, proxy, echo):
        hold = Hold(lambda call: call == (END_TXN, "trainer"))
        proxy.holds.append(hold)
        async with await anyio.connect_tcp(HOST, port) as client:
            await client.send(frame(b"1") + frame(b"2", END_TXN, "source") + frame(b"3", END_TXN, "trainer") + frame(b"4"))
            before = frame(b"1") + frame(b"2", END_TXN, "source")
            assert await BufferedByteReceiveStream(client).receive_exactly(len(before)) == before
            await anyio.wait_all_tasks_blocked()
        assert echo.received == before
        assert len(hold.calls) == 1
        hold.released.set()
        await echo.has(before + frame(b"3", END_TXN, "trainer") + frame(b"4"))


async def test_a_network_works_in_its_own_thread_and_is_mended() -> None:
    """The thread of this test is blocked while bytes pass."""
    with socket.create_server((HOST, 0)) as broker, open_network([(0, broker.getsockname()[1])]) as network:
        broker.settimeout(DEADLINE_S)
        with socket.create_connection((HOST, network.ports[0]), DEADLINE_S) as client:
            client.sendall(frame(b"a"))
            inside = broker.accept()[0]
            with inside:
                inside.settimeout(DEADLINE_S)
                assert inside.recv(100) == frame(b"a")
                hold = network.hold(lambda call: call.api_key == END_TXN)
                network.change(1, requests=CLOSED)
                client.sendall(frame(b"b", END_TXN))
                network.mend()
                assert inside.recv(100) == frame(b"b", END_TXN)
                assert len(hold.calls) <= 1
                network.cut()
                with pytest.raises(ConnectionResetError):
                    client.recv(1)
