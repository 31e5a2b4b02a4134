"""The demo's last word on its weights: `audit recompute` in a process of its own, which never saw the trainer."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

from infra.demo.cast import Plan
from schemas.errors import SetupError
from schemas.settings import Connection

IMPORTS_S = 120.0
STEP_S = 5.0
"""Far longer than it takes to import torch, and to train a step again."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How many versions were made again from the log, and whether all of them, and no fewer than there are, have its digests."""

    versions: int
    equal: bool


def prove(connection: Connection, plan: Plan, versions: int) -> Proof:
    """Make every version after the initial one again; `versions` is how many the log has.

    :raises SetupError: the process gave no answer.
    """
    command = [sys.executable, "-m", "infra.cli.main", "audit", "recompute", "-f", "json", "--run-dir", str(plan.run_dir)]
    where = ["--bootstrap", connection.address(), "--namespace", connection.namespace]
    limit_s = IMPORTS_S + STEP_S * plan.steps
    try:
        done = subprocess.run([*command, *where], capture_output=True, text=True, check=False, timeout=limit_s)
        said = json.loads(done.stdout)
    except subprocess.TimeoutExpired as error:
        raise SetupError(f"the weights were not made again within {limit_s:.0f} s") from error
    except ValueError as error:
        raise SetupError(f"the weights could not be made again: {done.stderr.strip() or f'exit code {done.returncode}'}") from error
    return Proof(said["versions"], said["verdict"] == "equal" and said["versions_equal"] == versions)
