"""One run of the demo: the crew works, the observer reads, the view draws, the story is told; all in one task group."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field

import aiohttp
import anyio
import anyio.to_thread
import uvloop

from infra.crew.crew import Crew, open_crew
from infra.crew.interrupt import signals_interrupt
from infra.demo.cast import AGENTS, GATEWAY, TRAINER, Plan, agents, services
from infra.demo.observer import Observer
from infra.demo.story import Story, Told
from infra.demo.view import View
from schemas.errors import SeamlessFlowError
from schemas.settings import Connection
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.service import first_error

DRAW_S = 0.25


@dataclass
class Performance:
    """A run, and what is known of it when it is over."""

    connection: Connection
    plan: Plan
    faults: bool
    trainer_kills: int
    view: View
    observer: Observer = field(default_factory=Observer)
    told: Told = field(default_factory=Told)
    ready_s: float = 0.0
    played_s: float = 0.0
    added_ms: dict[str, float] | None = None

    def run(self) -> None:
        """Play it. However it ends, no process of the crew is left.

        :raises SeamlessFlowError: something did not come to pass.
        """
        failures: list[SeamlessFlowError] = []
        with signals_interrupt(), open_crew(self.connection, self.view.tell) as crew:
            try:
                anyio.run(self._play, crew, backend_options={"loop_factory": uvloop.new_event_loop})
            except* SeamlessFlowError as group:
                failures.append(first_error(group))
        if failures:
            raise failures[0]

    def agent_errors(self) -> int | None:
        """Errors that agents saw, by their own count; None where they left no word."""
        try:
            return int(json.loads(self.plan.agents_file.read_text())["failed_tries"])
        except (OSError, ValueError, KeyError):
            return None

    async def _play(self, crew: Crew) -> None:
        began_s = time.monotonic()
        log = Log(KafkaBroker(self.connection.address(), client_id="demo"), self.connection.namespace, "demo")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.observer.run, log)
            tasks.start_soon(self._draw)
            await self._raise_curtain(crew)
            self.ready_s = time.monotonic() - began_s
            tasks.start_soon(_look_after, crew)
            story = Story(crew, self.observer, self.plan.steps, self.plan.victim, TRAINER, self.trainer_kills, self.told)
            await story.run(faults=self.faults)
            self.added_ms = await self._added_latency()
            self.played_s = time.monotonic() - began_s
            tasks.cancel_scope.cancel()
        await anyio.to_thread.run_sync(crew.end, [AGENTS])
        await anyio.to_thread.run_sync(crew.end, list(crew.members))

    async def _raise_curtain(self, crew: Crew) -> None:
        specs = services(self.plan)
        crew.start(specs)
        await anyio.to_thread.run_sync(crew.await_ready, [GATEWAY])
        crew.start([agents(self.plan, self.plan.address_file.read_text().strip())])
        await anyio.to_thread.run_sync(crew.await_ready, [*(spec.name for spec in specs), AGENTS])
        crew.say("demo", f"{len(specs) + 1} processes are ready")

    async def _draw(self) -> None:
        while True:
            self.view.draw(self.observer, self.plan.steps)
            await anyio.sleep(DRAW_S)

    async def _added_latency(self) -> dict[str, float] | None:
        """p50 and p99 of gateway time beyond engine time, ms, as the gateway measured them."""
        url = self.plan.address_file.read_text().strip()
        async with aiohttp.ClientSession() as http, http.get(f"{url}/stats") as response:
            said = await response.json() if response.status == 200 else {}
        return said.get("added_latency_ms")


async def _look_after(crew: Crew) -> None:
    while True:
        crew.look_after()
        await anyio.sleep(DRAW_S)
