"""The whole command in small sizes against a real broker: every figure comes out, no process and no topic is left."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from infra.broker.admin import Admin

FIGURES = ("ratio", "added_latency_ms", "calls_per_s", "trajectories_per_s", "takeover_s", "load")


@pytest.mark.timeout(400)
def test_a_quick_run_writes_every_figure_and_leaves_nothing_running(kafka_bootstrap: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "infra.cli.main", "bench", "--quick", "--bootstrap", kafka_bootstrap, "--run-dir", str(tmp_path)]
    topics = Admin(kafka_bootstrap).topic_names("bench")
    done = subprocess.run(command, capture_output=True, text=True, timeout=360, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [name for name in FIGURES if report[name] is None] == []
    assert sorted(report["ratio"]) == ["read_1k", "read_8k", "write_1k", "write_8k"]
    assert sorted(report["added_latency_ms"]) == ["1", "32"]
    assert report["quick"] is True
    assert processes_of(tmp_path) == []
    assert Admin(kafka_bootstrap).topic_names("bench") == topics


def processes_of(run_dir: Path) -> list[str]:
    """Command lines of processes that were given this run folder."""
    lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout.splitlines()
    return [line for line in lines if str(run_dir) in line]
