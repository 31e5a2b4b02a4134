"""Agents of the call benchmark, in a process of their own: `python -m infra.bench.client URL IN_FLIGHT CALLS`; the result is JSON.

Each agent holds conversations of TURNS calls, one after the other; every call repeats the history, as agents do. Opening and closing a
session is not timed, but it is part of the load and of the wall time.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any, TypedDict

import aiohttp
import anyio
import orjson
import uvloop

from infra.bench.engine import MAX_TOKENS

TURNS = 8
JSON = {"content-type": "application/json"}
QUESTION = "What is the next number after these, and why?"
TIMEOUT_S = 120.0


class Measured(TypedDict):
    """What the process writes: the latency of every call in milliseconds, and the wall time of all of it in seconds."""

    latencies_ms: list[float]
    wall_s: float


@dataclass(slots=True)
class Agents:
    """So many agents as calls may be in flight, until `calls` were begun. `latencies_ms` in the order of their ends."""

    url: str
    http: aiohttp.ClientSession
    calls: int
    latencies_ms: list[float] = field(default_factory=list)
    _begun: int = 0

    async def run(self) -> None:
        """One agent: conversation after conversation."""
        while self._begun < self.calls:
            session = await self._post(f"{self.url}/v1/sessions", {})
            await self._converse(f"{session['base_url']}/chat/completions")
            await self._post(f"{self.url}/v1/sessions/{session['id']}/close", {})

    async def _converse(self, url: str) -> None:
        messages: list[dict[str, str]] = []
        for _ in range(TURNS):
            if self._begun >= self.calls:
                return
            self._begun += 1
            messages.append({"role": "user", "content": QUESTION})
            began_s = time.perf_counter()
            answer = await self._post(url, {"model": "policy", "messages": messages, "max_tokens": MAX_TOKENS})
            self.latencies_ms.append((time.perf_counter() - began_s) * 1e3)
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})

    async def _post(self, url: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self.http.post(url, data=orjson.dumps(body), headers=JSON) as response:
            said = await response.read()
            if response.status >= 400:
                raise RuntimeError(f"{url} answered {response.status}: {said.decode(errors='replace')[:300]}")
            answer: dict[str, Any] = orjson.loads(said)
            return answer


async def measure(url: str, in_flight: int, calls: int) -> Measured:
    """Have so many calls made.

    :raises RuntimeError: the gateway refused or failed a call.
    """
    connector = aiohttp.TCPConnector(limit=in_flight)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(TIMEOUT_S)) as http:
        agents, began_s = Agents(url, http, calls), time.perf_counter()
        async with anyio.create_task_group() as tasks:
            for _ in range(in_flight):
                tasks.start_soon(agents.run)
        return {"latencies_ms": agents.latencies_ms, "wall_s": time.perf_counter() - began_s}


def main() -> None:
    """The process."""
    url, in_flight, calls = sys.argv[1:]
    result = anyio.run(measure, url, int(in_flight), int(calls), backend_options={"loop_factory": uvloop.new_event_loop})
    sys.stdout.buffer.write(orjson.dumps(result))


if __name__ == "__main__":
    main()
