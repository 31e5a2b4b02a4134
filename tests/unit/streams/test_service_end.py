"""How a role's process ends: in time whatever thread it leaves behind, with 0 where it was asked to or has finished, else with an error.

Each is a process of its own: the interpreter joins threads at exit, and signals are the whole process's.
"""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from schemas.errors import EndedUnasked

ROLE = """
import os, signal, sys, time
from contextlib import asynccontextmanager
import anyio
from anyio import to_thread
from schemas.errors import SetupError
from streams import service
from streams.log import Log
from streams.memory import MemoryBroker

service.CLOSE_S = {close_s}

@asynccontextmanager
async def log_of(role):
    yield Log(MemoryBroker(), "test.", role)

async def abandons(log, watch, *, task_status):
    task_status.started()
    with anyio.move_on_after(0.1):
        await to_thread.run_sync(time.sleep, 600, abandon_on_cancel=True)
    raise SetupError("the disk is full")

async def waits(log, watch, *, task_status):
    task_status.started()
    with watch.waiting_for("the update"):
        await to_thread.run_sync(time.sleep, 600)

async def ends(log, watch, *, task_status):
    task_status.started()

async def finishes(log, watch, *, task_status):
    task_status.started()
    return "finished"

async def returns_when_stopped(log, watch, *, task_status):
    task_status.started()
    os.kill(os.getpid(), signal.SIGTERM)
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        pass

sys.exit(service.run_process({role}, log_of, role="test", limit_s=0.5))
"""


def run(role: str, close_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    script = ROLE.replace("{role}", role).replace("{close_s}", str(close_s))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=90)


@pytest.mark.parametrize(("role", "said"), [("abandons", "seamlessflow test: the disk is full"), ("waits", "for the update")])
def test_a_hanging_thread_does_not_keep_a_failed_process(role: str, said: str) -> None:
    done = run(role, close_s=0.3)
    assert said in done.stderr
    assert done.returncode == -signal.SIGALRM


def test_a_role_that_ends_though_nobody_asked_it_to_has_failed() -> None:
    done = run("ends")
    assert done.stderr.endswith(f"seamlessflow test: the role test ended, and nobody had asked it to ({EndedUnasked.remedy})\n")
    assert done.returncode == EndedUnasked.exit_code != 0


@pytest.mark.parametrize("role", ["finishes", "returns_when_stopped"])
def test_a_role_that_has_finished_or_was_stopped_ends_with_0(role: str) -> None:
    assert run(role).returncode == 0
