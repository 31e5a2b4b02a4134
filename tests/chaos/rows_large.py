"""Sessions too large for a message: their records go through the blob store, also across a death, and no process holds all of them."""

from __future__ import annotations

import anyio
import anyio.to_thread

from infra.audit.log import KafkaLog
from schemas.arrays import WIDTH_BYTES
from schemas.errors import MissingBlob
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.harness import WORKERS, Pipeline
from tests.flow.long_agent import converse, peaks_bytes
from tests.flow.seen import DEADLINE_S, Key, require_unbroken

PROMPTS = (150_000, 50_000)
ANSWER = 150
SESSIONS = 6
LARGE = 2
"""Payloads of each session in the blob store: the Request of its first turn, and its Trajectory."""
PEAK_BYTES = 160 << 20
"""What no process may exceed. One that does next to nothing has 60 to 80 MiB."""


@row("a worker dies while sessions of 200,000 tokens run", scene="loop", is_alone=True)
async def large_sessions(stage: Stage) -> Happened:
    """The next owner reads their prompts from the blob store and goes on where the log stands; assembler, reward and trainer read on."""
    ended: set[Key] = set()
    async with anyio.create_task_group() as tasks:
        for _ in range(SESSIONS):
            tasks.start_soon(_run, stage.pipeline.url, ended)
        await stage.seen.until(lambda: len(_long_running(stage)) >= SESSIONS // 2, "long sessions in mid-generation")
        victim = stage.seen.owners[_long_running(stage)[0].partition].node
        held = stage.held(victim)
        stage.kill(victim)
        await stage.taken_over(victim, held)
    await stage.seen.until(lambda: ended <= stage.seen.decided_sessions(), "a decision on each long session")
    blobs = await anyio.to_thread.run_sync(_references, stage.pipeline)
    peaks = peaks_bytes(stage.pipeline.crew.members)
    said = ", ".join(f"{name} {peak >> 20}" for name, peak in sorted(peaks.items()))
    assert max(peaks.values()) <= PEAK_BYTES, f"peaks of memory, MiB: {said}"
    is_large = blobs >= LARGE * SESSIONS
    return Happened(f"{victim} died by SIGKILL; {blobs} records in the blob store; peaks of memory, MiB: {said}" if is_large else "")


@row("kill the assembler between a blob and its record", scene="loop", failpoint="blobs.stored", arms="assembler")
async def assembler_dies_with_its_blob_alone(stage: Stage) -> Happened:
    """The next one writes the Trajectory again, to the same name within the hour; it counts once."""
    await stage.arm()
    ended: set[Key] = set()
    await _run(stage.pipeline.url, ended)
    fired = await stage.dies()
    await stage.pipeline.restart("assembler")
    await stage.seen.until(lambda: ended <= stage.seen.decided_sessions(), "a decision on the long session")
    return Happened(fired)


@row("lose the blob store and bring it back", scene="loop", is_alone=True)
async def store_is_lost_for_a_while(stage: Stage) -> Happened:
    """An owner that is to take over a long prompt stops: no other can go on without it. With the store back all goes on."""
    store = anyio.Path(stage.pipeline.connection.blob_root())
    ended: set[Key] = set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_run, stage.pipeline.url, ended)
        await stage.seen.until(lambda: _long_running(stage), "a long session in mid-generation")
        victim = stage.seen.owners[_long_running(stage)[0].partition].node
        away = await store.rename(store.with_name("away"))
        stage.kill(victim)
        (heir,) = (name for name in WORKERS if name != victim)
        code = await stage.pipeline.exit_code(heir)
        await away.rename(store)
        await stage.pipeline.restart(heir)
        await stage.seen.until(lambda: not stage.held(victim), "the other worker to take the partitions")
    await stage.seen.until(lambda: ended <= stage.seen.decided_sessions(), "a decision on the long session")
    return Happened(f"{heir} ended: {MissingBlob.remedy}" if code == MissingBlob.exit_code else "")


async def _run(url: str, ended: set[Key]) -> None:
    session, answers = await converse(url, PROMPTS, ANSWER, DEADLINE_S)
    for answer in answers:
        require_unbroken([int(number) for number in answer.split()], ANSWER)
    ended.add(session)


def _long_running(stage: Stage) -> list[Key]:
    """Requests in mid-generation whose own prompt is one of these."""
    return [key for key in stage.seen.running() if len(stage.seen.request(key).record.tokens) // WIDTH_BYTES >= min(PROMPTS)]


def _references(pipeline: Pipeline) -> int:
    """Messages that refer to a blob, as the second client reads them."""
    with KafkaLog(pipeline.connection.address(), pipeline.connection.namespace) as log:
        return sum("blob" in dict(message.headers) for topic in ("sessions", "trajectories", "training") for message in log.read(topic))
