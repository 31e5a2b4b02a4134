"""The one broker dies, freezes, or finds its disk full: writers resend, readers go on where they stood, agents wait."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from infra.broker.cluster import LocalKafka
from infra.broker.node import diagnose
from streams.broker import Outgoing, Place, TopicSpec
from streams.kafka import KafkaBroker
from streams.writer import Writer, open_writer
from tests.chaos.row import Happened, Skip, row
from tests.chaos.stage import Stage

FROZEN_S = 20.0
DEATH_S = 1.0
"""A kill and a start leave at least so long a silence."""


@row("kill the broker under calls")
async def broker_dies_under_calls(stage: Stage) -> Happened:
    gateways = stage.pipeline.crew.members["gateway"].starts
    async with stage.looked_after(), stage.agents(tokens=200) as work:
        await stage.under_way()
        fired = await broker_dies(stage)
    assert not work.broken or stage.pipeline.crew.members["gateway"].starts > gateways
    return Happened(fired, least_stall_s=DEATH_S)


@row("kill the broker under the closed loop", scene="loop")
async def broker_dies_under_the_loop(stage: Stage) -> Happened:
    await stage.under_way()
    async with stage.looked_after():
        fired = await broker_dies(stage)
        await stage.seen.more_steps(2)
    return Happened(fired, least_stall_s=DEATH_S)


async def broker_dies(stage: Stage) -> str:
    """Kill the broker and start it again; answers the proof.

    Where that takes longer than roles wait for a broker (30 s), they end and are to be started again, as `up` does.
    """
    await anyio.to_thread.run_sync(stage.kafka.kill)
    was_gone = not stage.kafka.running()
    await anyio.to_thread.run_sync(stage.kafka.restart)
    return "node 1 died by SIGKILL and came back" if was_gone else ""


@row("freeze the broker for 20 s")
async def broker_freezes(stage: Stage) -> Happened:
    gateways = stage.pipeline.crew.members["gateway"].starts
    async with stage.looked_after(), stage.agents(tokens=200) as work:
        await stage.under_way()
        stage.kafka.freeze()
        try:
            await anyio.sleep(FROZEN_S)  # not a wait: this long, nothing answers
        finally:
            stage.kafka.thaw()
    assert not work.broken or stage.pipeline.crew.members["gateway"].starts > gateways
    return Happened(f"node 1 stood still for {FROZEN_S:.0f} s", least_stall_s=FROZEN_S - 1)


SMALL_MIB, LARGER_MIB = 24, 96
RECORD_BYTES, RECORDS = 100_000, 300
"""More than the small disk holds, less than the larger one does."""


@row("the broker's disk is full", scene="bare")
async def disk_is_full(stage: Stage) -> Happened:
    """The broker ends and says why; with more room it starts again, and the writer, which waited, brings every record, once."""
    with small_disk(stage.folder / "small-disk") as folder:
        kafka = LocalKafka(folder)
        try:
            await anyio.to_thread.run_sync(kafka.start)
            return await fill(kafka, folder)
        finally:
            await anyio.to_thread.run_sync(kafka.stop)


async def fill(kafka: LocalKafka, folder: Path) -> Happened:
    """Write until the broker ends, give it room, and count what stands in the log."""
    place, broker = Place("full", 0), KafkaBroker(kafka.bootstrap, client_id="chaos")
    await broker.create_topics([TopicSpec("full", 1, {})])
    async with open_writer(broker) as writer, anyio.create_task_group() as tasks:
        tasks.start_soon(write_all, writer)
        with anyio.fail_after(FROZEN_S * 3):
            while kafka.running():
                await anyio.sleep(0.1)
        said = diagnose(kafka.log(1))
        remount(folder, LARGER_MIB)
        await anyio.to_thread.run_sync(kafka.restart)
    numbers: list[int] = []
    async with broker.reader({place: 0}) as reader:
        while reader.position(place) < await reader.end(place):
            numbers += [int((message.key or b"").decode()) for message in await reader.read(timeout_s=5.0)]
    lost, twice = RECORDS - len(set(numbers)), len(numbers) - len(set(numbers))
    return Happened(f"node 1 ended: {said}" if "disk is full" in said else "", lost=lost, twice=twice)


async def write_all(writer: Writer) -> None:
    """Send all records, and wait until the log holds them."""
    for number in range(RECORDS):
        await writer.send(Outgoing("full", 0, b"%d" % number, secrets.token_bytes(RECORD_BYTES)))
    await writer.flush()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system in memory of SMALL_MIB.

    :raises Skip: this process may not mount one.
    """
    folder.mkdir(parents=True)
    try:
        mount("-t", "tmpfs", "-o", f"size={SMALL_MIB}m", "tmpfs", str(folder))
    except (OSError, subprocess.CalledProcessError) as failure:
        raise Skip(f"a small file system cannot be mounted here: {getattr(failure, 'stderr', failure)}") from failure
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, size_mib: int) -> None:
    """Change the size of a mounted file system."""
    mount("-o", f"remount,size={size_mib}m", str(folder))


def mount(*arguments: str) -> None:
    """Call mount.

    :raises subprocess.CalledProcessError: it refused.
    """
    subprocess.run(["mount", *arguments], check=True, capture_output=True, text=True)
