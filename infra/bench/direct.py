"""The yardstick of the call benchmark: the gateway's own code with the engine in its process, and no log between them.

HTTP, rendering, the fold, the cut of spans and the answers are those of the real gateway. What is written goes straight into the fold, at
offsets that are counted here; a Request goes straight to the engine. Nothing is encoded, nothing is kept, nobody else could read it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import cast

import anyio
from anyio.abc import TaskStatus

from infra.bench.engine import ENGINE_S, TOKENS_PER_S
from models.chat import load_chat
from schemas.identity import START
from schemas.record import Record
from schemas.session import Request
from schemas.topics import Topic
from schemas.training import WeightVersion
from streams.codec import Entry
from streams.log import Log, RecordWriter
from streams.service import Role, Watch
from workers.gateway.app import App
from workers.gateway.calls import Calls
from workers.gateway.mirror import Mirror
from workers.gateway.server import serve as serve_http
from workers.gateway.service import listening
from workers.gateway.settings import GatewaySettings
from workers.ledger import RequestState
from workers.positions import Start
from workers.rollout.engines.base import Engine, Job, JobId
from workers.rollout.engines.paced import paced_engine
from workers.rollout.spans import SpanBuffers

PARTITIONS = 16
STREAM_TOKENS, FLUSH_S = 4, 0.5
WEIGHTS = WeightVersion(version=0, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="")


def role(settings: GatewaySettings) -> Role:
    """A gateway with its own engine."""

    async def run(log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
        chat, stop = load_chat(settings.model_dir), anyio.Event()
        mirror = Mirror({partition: Start(START, None) for partition in range(PARTITIONS)}, chat, settings.ended_sessions, lambda _: None)
        mirror.begin()
        with listening(settings) as listener:
            async with paced_engine(TOKENS_PER_S, ENGINE_S) as engine, anyio.create_task_group() as tasks:
                await engine.load(WEIGHTS)
                shortcut = Shortcut(mirror, engine)
                tasks.start_soon(shortcut.run)
                app = App(Calls(settings, log, mirror, cast("RecordWriter", shortcut), chat)).starlette()
                task_status.started()
                await serve_http(app, listener, stop, settings.drain_s, mirror.dismiss)

    return run


@dataclass
class Shortcut:
    """Stands where the gateway's writer and the owner stand: `send` folds at once and submits Requests, `run` folds what is sampled."""

    mirror: Mirror
    engine: Engine
    buffers: SpanBuffers = field(default_factory=lambda: SpanBuffers(STREAM_TOKENS, FLUSH_S))
    _offsets: itertools.count[int] = field(default_factory=itertools.count)

    async def send(self, topic: Topic, partition: int, record: Record) -> None:
        """As `RecordWriter.send`."""
        offset = self._apply(partition, record)
        if isinstance(record, Request):
            await self._submit(partition, record.session, self.mirror.ledgers[partition].sessions[record.session].requests[offset])

    async def run(self) -> None:
        """Fold what the engine samples, until cancelled."""
        async for emissions in self.engine.emissions():
            for owned in self.buffers.absorb(emissions, anyio.current_time()):
                self._apply(owned.partition, owned.span)

    async def _submit(self, partition: int, session: int, request: RequestState) -> None:
        job = JobId(partition, request.offset, START.epoch)
        self.buffers.open(job, session=session, start=0, stream=request.record.stream, now=anyio.current_time())
        await self.engine.submit(Job(job, request.prompt_ids(), request.record.sampling))

    def _apply(self, partition: int, record: Record) -> int:
        offset = next(self._offsets)
        self.mirror.apply(Entry(partition, offset, 0, record))
        return offset
