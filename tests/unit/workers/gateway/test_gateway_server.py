"""How long idle connections live, against the clients that agents use."""

from __future__ import annotations

import aiohttp
import openai
import pytest

from workers.gateway.server import KEEP_ALIVE_S

pytestmark = pytest.mark.anyio


async def test_a_client_drops_an_idle_connection_before_the_gateway_does() -> None:
    async with aiohttp.TCPConnector() as connector, openai.AsyncOpenAI(api_key="none") as client:
        pool = client._client._transport._pool  # type: ignore[attr-defined]
        assert connector._keepalive_timeout < KEEP_ALIVE_S
        assert pool._keepalive_expiry < KEEP_ALIVE_S
