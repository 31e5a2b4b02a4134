from __future__ import annotations

import anyio
import pytest

from schemas.errors import EngineError
from schemas.span import Finish
from workers.rollout.engines.base import Emission, JobId
from workers.rollout.engines.outbox import Outbox

pytestmark = pytest.mark.anyio

FIRST, SECOND = JobId(0, 1, 1), JobId(0, 2, 1)


def emission(job: JobId, token: int, finish: Finish | None = None) -> Emission:
    return Emission(job, [token], [-1.0], 0, 0, finish)


async def rest(outbox: Outbox) -> list[Emission]:
    return [said async for batch in outbox.batches() for said in batch]


async def test_emissions_are_delivered_in_order_until_the_end() -> None:
    outbox = Outbox()
    outbox.open(FIRST)
    outbox.open(SECOND)
    said = [emission(FIRST, 1), emission(SECOND, 2), emission(FIRST, 3, "stop")]
    outbox.post(said[:2])
    outbox.post(said[2:])
    assert outbox.live == 1
    outbox.close()
    assert await rest(outbox) == said


async def test_nothing_of_a_dropped_job_is_delivered() -> None:
    outbox = Outbox()
    outbox.open(FIRST)
    outbox.open(SECOND)
    outbox.post([emission(FIRST, 1), emission(SECOND, 2)])
    assert outbox.drop(FIRST)
    outbox.post([emission(FIRST, 3), emission(SECOND, 4)])
    outbox.close()
    assert await rest(outbox) == [emission(SECOND, 2), emission(SECOND, 4)]
    assert not outbox.drop(FIRST)


async def test_nothing_follows_a_finish() -> None:
    outbox = Outbox()
    outbox.open(FIRST)
    outbox.post([emission(FIRST, 1, "length"), emission(FIRST, 2)])
    outbox.close()
    assert await rest(outbox) == [emission(FIRST, 1, "length")]


async def test_a_waiting_consumer_is_woken() -> None:
    outbox, heard = Outbox(), []
    outbox.open(FIRST)

    async def listen() -> None:
        heard.extend(await rest(outbox))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(listen)
            await anyio.wait_all_tasks_blocked()
            outbox.post([emission(FIRST, 1)])
            await anyio.wait_all_tasks_blocked()
            outbox.close()
    assert heard == [emission(FIRST, 1)]


async def test_a_dead_engine_delivers_what_it_said_and_then_raises() -> None:
    outbox = Outbox()
    outbox.open(FIRST)
    outbox.post([emission(FIRST, 1)])
    outbox.fail(EngineError("out of memory"))
    batches = outbox.batches()
    assert await anext(batches) == [emission(FIRST, 1)]
    with pytest.raises(EngineError, match="out of memory"):
        await anext(batches)
    with pytest.raises(EngineError, match="out of memory"):
        outbox.open(SECOND)


async def test_a_job_is_opened_once_and_never_after_the_close() -> None:
    outbox = Outbox()
    outbox.open(FIRST)
    with pytest.raises(EngineError, match="runs already"):
        outbox.open(FIRST)
    outbox.close()
    with pytest.raises(EngineError, match="closed"):
        outbox.open(SECOND)
