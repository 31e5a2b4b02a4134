"""R10 in a process: what is waited for too long ends it, with the cause; a loop that was blocked is told."""

from __future__ import annotations

import time

import anyio
import pytest
from structlog.testing import capture_logs

from schemas.errors import NoProgress
from streams import service
from streams.service import Watch

pytestmark = pytest.mark.anyio


async def test_r10_a_wait_beyond_the_limit_ends_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WATCH_PERIOD_S", 0.01)
    watch = Watch(limit_s=0.05)
    with watch.waiting_for("what came"):
        pass
    with watch.waiting_for("the tide"), anyio.fail_after(20), pytest.raises(NoProgress, match="for the tide"):
        await watch.run()


async def test_what_is_not_waited_for_any_more_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WATCH_PERIOD_S", 0.001)
    watch, looks = Watch(limit_s=0.0), 0
    with pytest.raises(ValueError, match="the wait failed"), watch.waiting_for("something"):
        raise ValueError("the wait failed")

    async def look_on() -> None:
        nonlocal looks
        while looks < 20:
            await anyio.sleep(0.001)
            looks += 1

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await look_on()
        tasks.cancel_scope.cancel()
    assert watch.waits == {}


async def test_a_loop_that_was_blocked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "LAG_PERIOD_S", 0.01)
    monkeypatch.setattr(service, "LAG_REPORT_S", 0.1)
    with capture_logs() as said, anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(service._measure_lag)
            await anyio.wait_all_tasks_blocked()
            time.sleep(0.3)  # noqa: ASYNC251 - the defect that is to be seen
            while not said:
                await anyio.sleep(0.01)
            tasks.cancel_scope.cancel()
    assert (said[0]["event"], said[0]["log_level"]) == ("the event loop was blocked", "warning")
    assert said[0]["late_s"] >= 0.2
