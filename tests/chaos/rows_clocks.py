"""Clocks that differ by an hour: nothing that counts is measured by anybody's clock but the log's."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage

SKEW_S = {"rollout-0": 3600, "rollout-1": -3600, "scheduler": 3600, "assembler": -3600, "gateway": 3600}
SITE = """
import sys, time
_seconds, _nanoseconds = time.time, time.time_ns
time.time = lambda: _seconds() + ({skew_s})
time.time_ns = lambda: _nanoseconds() + ({skew_s}) * 1_000_000_000
print("this process's clock is off by {skew_s} s", file=sys.stderr)
"""
"""Runs in each Python process before anything else, where its folder stands on PYTHONPATH."""


@row("clocks are an hour off, either way")
async def clocks_differ(stage: Stage) -> Happened:
    """Every role that may notice a death has another time of day. One worker dies, and the other takes over as ever."""
    crew = stage.pipeline.crew
    for member, skew_s in SKEW_S.items():
        crew.end([member])
        with skewed(stage.folder / f"clock{skew_s}", skew_s):
            crew.restart(member)
    await stage.pipeline.ready(*SKEW_S)
    async with stage.agents(tokens=150) as work:
        victim = await stage.busiest(least=1)
        held = stage.held(victim)
        stage.kill(victim)
        await stage.taken_over(victim, held)
    assert not work.broken
    off = [member for member, skew_s in SKEW_S.items() if f"clock is off by {skew_s} s" in stage.pipeline.said(member)]
    crew.end([member for member in SKEW_S if member != victim])  # what runs next has the time of day again
    return Happened(f"{', '.join(off)} had clocks an hour off" if len(off) == len(SKEW_S) else "")


@contextmanager
def skewed(folder: Path, skew_s: int) -> Iterator[None]:
    """Processes that start within are off by so many seconds."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(SITE.format(skew_s=skew_s))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder.absolute()), *([before] if before else [])])
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
