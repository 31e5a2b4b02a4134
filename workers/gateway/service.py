"""A gateway: one task reads all partitions of `sessions`, one writes Cancels, uvicorn serves agents.

A gateway keeps nothing that the log does not hold: any of them serves any session, and one that dies loses nothing but connections.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import anyio
import structlog
from anyio.abc import TaskStatus
from anyio.streams.memory import MemoryObjectReceiveStream

from models.chat import load_chat
from schemas.errors import BrokerUnavailable
from schemas.grant import Grant
from schemas.session import Cancel
from schemas.topics import GRANTS, SESSIONS
from streams.log import Log, RecordWriter
from streams.service import Role, Watch
from streams.table import open_table
from streams.topics import check_topics
from workers.gateway.app import App
from workers.gateway.calls import Calls
from workers.gateway.mirror import Leaver, Mirror
from workers.gateway.server import base_url, listen, write_address
from workers.gateway.server import serve as serve_http
from workers.gateway.settings import GatewaySettings
from workers.positions import ROLLOUT_GROUP, Start, find_starts
from workers.snapshot_store import SnapshotStore

PROGRESS_S = 0.25
"""Between two looks whether a gateway that starts reads on."""

LOOK_S = 5.0
"""Between two looks for a Position where retention passed all of them."""

logger = structlog.get_logger()


def role(settings: GatewaySettings) -> Role:
    """The gateway role with these settings."""
    return partial(serve, settings)


async def serve(settings: GatewaySettings, log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> None:
    """Serve until cancelled; then let calls in flight end for `drain_s`, answer the others with 503 and cancel their requests.

    :raises SetupError: the port is taken.
    :raises UsageError: the model folder holds no tokenizer.
    """
    stop = anyio.Event()
    with listening(settings) as listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_set_when_cancelled, stop)
            with anyio.CancelScope(shield=True):  # draining takes the reader and the writer alive
                await _run(settings, log, watch, listener, stop, task_status)
            tasks.cancel_scope.cancel()


@contextmanager
def listening(settings: GatewaySettings) -> Iterator[socket.socket]:
    """The socket, bound and announced.

    :raises SetupError: the port is taken.
    """
    with listen(settings.host, settings.port) as listener:
        url = base_url(listener)
        logger.info("listening", url=url)
        if settings.address_file is not None:
            write_address(settings.address_file, url)
        yield listener


async def _run(
    settings: GatewaySettings, log: Log, watch: Watch, listener: socket.socket, stop: anyio.Event, task_status: TaskStatus[None]
) -> None:
    chat = load_chat(settings.model_dir)
    with watch.waiting_for("the start of the log"):
        starts = await _starts(log, settings.snapshots)
    leavers, to_cancel = anyio.create_memory_object_stream[Leaver](math.inf)  # no more of them than calls in flight
    mirror = Mirror(starts, chat, settings.ended_sessions, leavers.send_nowait)
    positions = {partition: start.position.offset for partition, start in starts.items()}
    async with leavers, to_cancel, log.writer() as writer, log.follow(SESSIONS, positions) as reader, anyio.create_task_group() as tasks:
        tasks.start_soon(mirror.run, reader)
        tasks.start_soon(_look_for_positions, log, mirror)
        tasks.start_soon(write_cancels, to_cancel, writer)
        tasks.start_soon(partial(catch_up, log, mirror, watch, task_status=task_status))
        app = App(Calls(settings, log, mirror, writer, chat)).starlette()
        await serve_http(app, listener, stop, settings.drain_s, mirror.dismiss)
        await _cancel_the_rest(to_cancel, writer)
        tasks.cancel_scope.cancel()


async def _starts(log: Log, snapshots: str) -> dict[int, Start]:
    partitions = await check_topics(log.broker, log.namespace)
    async with open_table(log, GRANTS) as grants:
        newest = {entry.record.partition: entry.offset for entry in grants.rows.values() if isinstance(entry.record, Grant)}
    starts = await find_starts(log, range(partitions), newest, store=SnapshotStore(log, snapshots, ROLLOUT_GROUP))
    lost = sorted(partition for partition, start in starts.items() if start.floor is not None)
    if lost:
        logger.error("retention passed every position: sessions of these partitions are lost", partitions=lost)
    return starts


async def _look_for_positions(log: Log, mirror: Mirror) -> None:
    """A living owner commits its Position again by and by, and never writes a reset: where there was none, one may stand later."""
    while lost := mirror.lost():
        await anyio.sleep(LOOK_S)
        try:
            found = await find_starts(log, lost, {})
        except BrokerUnavailable as error:
            logger.warning("positions could not be read: asked again", error=str(error))
            continue
        for partition, start in found.items():
            if start.floor is None:
                mirror.restart(partition, start)


async def catch_up(log: Log, mirror: Mirror, watch: Watch, *, task_status: TaskStatus[None]) -> None:
    """Wait until all that the log holds now was read. Each record that is read begins the watch's wait anew."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_watch_reading, mirror, watch)
        await mirror.read_to_end(log)
        tasks.cancel_scope.cancel()
    mirror.begin()
    logger.info("caught up", partitions=len(mirror.ledgers), claimed=mirror.claimed())
    task_status.started()


async def _watch_reading(mirror: Mirror, watch: Watch) -> None:
    while True:
        with watch.waiting_for("the end of sessions"):
            before = mirror.progress()
            while mirror.progress() == before:  # noqa: ASYNC110 - an event for each batch would be paid for ever, for a wait at the start
                await anyio.sleep(PROGRESS_S)


async def write_cancels(leavers: MemoryObjectReceiveStream[Leaver], writer: RecordWriter) -> None:
    """Write a Cancel for each of them, also for one that is handed over at the moment of the cancellation."""
    async for leaver in leavers:
        with anyio.CancelScope(shield=True):  # it is in no queue any more: cancelled here, it would be lost
            await _write_cancel(leaver, writer)


async def _cancel_the_rest(leavers: MemoryObjectReceiveStream[Leaver], writer: RecordWriter) -> None:
    """The calls that did not end while the server drained."""
    while leavers.statistics().current_buffer_used:
        await _write_cancel(leavers.receive_nowait(), writer)


async def _write_cancel(leaver: Leaver, writer: RecordWriter) -> None:
    cancel = Cancel(session=leaver.session, request=leaver.request, reason=leaver.reason)
    await writer.send(SESSIONS, leaver.partition, cancel)


async def _set_when_cancelled(stop: anyio.Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        stop.set()
