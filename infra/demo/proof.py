"""The demo's last word on its weights: `audit recompute` in a process of its own, which never saw the trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from infra.demo.cast import Plan
from schemas.settings import Connection

IMPORTS_S = 120.0
STEP_S = 5.0
"""Far longer than it takes to import torch, and to train a step again."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How many versions were made again from the log, and whether all of them, and no fewer than there are, have its digests. `words`: what
    the process said where it gave no answer."""

    versions: int
    equal: bool
    words: str = ""

    def report(self) -> dict[str, object]:
        """As the demo's report has it."""
        return {"recomputed_versions": self.versions, "recomputed_equal": self.equal, "recompute_said": self.words}


def prove(connection: Connection, plan: Plan, versions: int) -> Proof:
    """Make every version after the initial one again; `versions` is how many the log has. No answer is no proof."""
    command = [sys.executable, "-m", "infra.cli.main", "audit", "recompute", "-f", "json", "--run-dir", str(plan.run_dir)]
    where = ["--bootstrap", connection.address(), "--namespace", connection.namespace]
    limit_s = IMPORTS_S + STEP_S * plan.steps
    try:
        done = subprocess.run([*command, *where], capture_output=True, text=True, check=False, timeout=limit_s)
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return Proof(0, equal=False, words=f"no answer within {limit_s:.0f} s")
    except ValueError:
        return Proof(0, equal=False, words=done.stderr.strip() or f"exit code {done.returncode}")
    return Proof(said["versions"], said["verdict"] == "equal" and said["versions_equal"] == versions)
