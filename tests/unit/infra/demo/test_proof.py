"""What the demo makes of the answer of `audit recompute`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from infra.demo import proof
from infra.demo.cast import Plan
from schemas.settings import Connection

PLAN = Plan(Path("run"), steps=40, seed=0, turns=1)


def prove(monkeypatch: pytest.MonkeyPatch, answer: str, versions: int = 40) -> proof.Proof:
    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:6] == ["-m", "infra.cli.main", "audit", "recompute", "-f"]
        assert command[-4:] == ["--bootstrap", "host:1", "--namespace", "n."]
        assert options["timeout"] > 40
        return subprocess.CompletedProcess(command, 50, stdout=answer, stderr="seamlessflow: version 0 is gone\n")

    monkeypatch.setattr(subprocess, "run", run)
    return proof.prove(Connection(bootstrap="host:1", namespace="n."), PLAN, versions)


@pytest.mark.parametrize(
    ("verdict", "equal", "versions", "expected"),
    [("equal", 40, 40, True), ("equal", 40, 41, False), ("equal", 39, 40, False), ("different", 40, 40, False)],
)
def test_equal_means_every_version_that_the_log_has(
    monkeypatch: pytest.MonkeyPatch, verdict: str, equal: int, versions: int, expected: bool
) -> None:
    answer = json.dumps({"verdict": verdict, "versions": 40, "versions_equal": equal})
    assert prove(monkeypatch, answer, versions) == proof.Proof(40, expected)


def test_a_process_without_an_answer_proves_nothing_and_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prove(monkeypatch, "") == proof.Proof(0, equal=False, words="seamlessflow: version 0 is gone")
