"""The demo as a visitor runs it, shorter: its own Kafka, its faults, its audit, its report."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from infra.broker.cluster import LocalKafka
from infra.broker.process import Process, end_all, start_time

pytestmark = [pytest.mark.anyio, pytest.mark.last, pytest.mark.torch, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
STEPS = 30
SEED = 7
DEADLINE_S = 800.0


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[Path]:
    """A run folder. Whatever the demo left running in it is ended."""
    folder = tmp_path / "demo"
    yield folder
    for ready in folder.glob("ready/*.json"):
        pid = json.loads(ready.read_text())["pid"]
        if f"--run-dir\0{folder}\0" in command_of(pid):
            end_all([Process(pid, start_time(pid) or "ended")], grace_s=10)
    LocalKafka(folder).stop()


def command_of(pid: int) -> str:
    """The command line of a process, its parts ended by NUL; empty where none runs."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


async def demo(*arguments: str) -> tuple[int, str]:
    """Run it; exit code and what it said."""
    command = [sys.executable, "-m", "infra.cli.main", "demo", "--plain", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SEAMLESSFLOW_")}
    with anyio.fail_after(DEADLINE_S):
        done = await anyio.run_process(command, check=False, stderr=None, env=environment, cwd=ROOT)
    return done.returncode, done.stdout.decode()


def nulls(report: dict[str, Any]) -> set[str]:
    """Figures that were not measured."""
    return {name for name, value in report.items() if value is None}


async def test_a_short_demo_with_faults(run_dir: Path) -> None:
    print("seed", SEED)
    code, said = await demo("--steps", str(STEPS), "--seed", str(SEED), "--run-dir", str(run_dir))
    print(said)
    assert code == 0
    report = json.loads((run_dir / "report.json").read_text())
    print(json.dumps(report, indent=2))
    assert nulls(report) == set()
    assert (report["steps"], report["seed"]) == (STEPS, SEED)
    assert (report["lost_requests"], report["trained_twice"], report["violations"]) == (0, 0, [])
    assert report["audit_ok"] is True
    assert report["resumed_at_accepted_length"] is True
    assert report["resumed_requests"] >= 3
    assert report["requests_under_way_at_the_kill"] >= 3
    assert report["takeover_s"] > 0
    assert 0 <= report["staleness_max"] <= report["staleness_bound"]
    assert set(report["added_latency_ms"]) == {"p50", "p99"}
    assert 0 <= report["heldout_before"] <= 1
    assert report["episodes"] > STEPS
