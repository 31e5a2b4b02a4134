"""The loop: time moves only when nothing else is to be done, and what waits for nothing is noticed."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from tests.simulation.cluster import Cluster
from tests.simulation.virtual_loop import RESOLUTION_S, START_S, Deadlock, run_virtually


def test_time_is_that_of_the_timers_and_costs_none() -> None:
    seen: list[tuple[str, float]] = []

    async def sleeper(name: str, seconds: float) -> None:
        await anyio.sleep(seconds)
        seen.append((name, anyio.current_time() - START_S))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sleeper, "a year", 31_536_000.0)
            tasks.start_soon(sleeper, "a moment", 0.1)

    began = time.monotonic()
    run_virtually(main)
    assert [name for name, _ in seen] == ["a moment", "a year"]
    assert [at_s for _, at_s in seen] == [pytest.approx(0.1), pytest.approx(31_536_000.0)]
    assert time.monotonic() - began < 3600


def test_time_stands_still_while_callbacks_are_ready() -> None:
    async def main() -> None:
        for _ in range(100):
            await anyio.lowlevel.checkpoint()
        assert anyio.current_time() == START_S

    run_virtually(main)


def test_a_deadline_strikes_at_its_time_exactly() -> None:
    async def main() -> None:
        for limit_s in (0.1, 0.2, 0.3, 1 / 3):  # sums that binary fractions round
            began = anyio.current_time()
            with anyio.move_on_after(limit_s):
                await anyio.sleep_forever()
            assert anyio.current_time() == began + limit_s

    run_virtually(main)


def test_waiting_for_nothing_is_a_deadlock() -> None:
    with pytest.raises(Deadlock):
        run_virtually(anyio.sleep_forever)


def test_a_wait_that_its_timer_ended_a_moment_early_is_over() -> None:
    """Else its reader would ask again at once, for ever: time moves only where nothing is ready."""

    async def busy() -> None:
        for _ in range(10):
            await anyio.lowlevel.checkpoint()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(busy)
            assert not await Cluster().news(["letters"], anyio.current_time() + RESOLUTION_S / 2)

    run_virtually(main)
