"""The end of an aiokafka client, whose parts fail in the ways in which aiokafka's do."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from streams.kafka.client import close

pytestmark = pytest.mark.anyio


class Fetcher:
    """Its `close` awaits a fetch that it cancelled: in the pause before another try, aiokafka's fetch lets the cancellation through."""

    async def close(self) -> None:
        raise asyncio.CancelledError


class Connections:
    def __init__(self) -> None:
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


class Consumer:
    """`stop` ends the fetcher first, as aiokafka's consumer does."""

    def __init__(self) -> None:
        self._fetcher = Fetcher()
        self._client = Connections()

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        await self._fetcher.close()
        await self._client.close()


async def test_a_fetch_in_its_pause_neither_cancels_the_caller_nor_leaves_sockets() -> None:
    consumer = Consumer()
    went_on = False
    async with anyio.create_task_group() as tasks:
        await close(consumer)
        went_on = not tasks.cancel_scope.cancel_called
    assert went_on
    assert consumer._client.is_closed
