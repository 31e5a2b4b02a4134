"""A role's process ends in time whatever thread it leaves behind: a process of its own, for the interpreter joins threads at exit."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

ROLE = """
import sys, time
from contextlib import asynccontextmanager
import anyio
from anyio import to_thread
from schemas.errors import SetupError
from streams import service
from streams.log import Log
from streams.memory import MemoryBroker

service.CLOSE_S = 0.3

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

sys.exit(service.run_process({role}, log_of, role="test", limit_s=0.5))
"""


@pytest.mark.parametrize(("role", "said"), [("abandons", "seamlessflow test: the disk is full"), ("waits", "for the update")])
def test_a_hanging_thread_does_not_keep_a_failed_process(role: str, said: str) -> None:
    done = subprocess.run([sys.executable, "-c", ROLE.replace("{role}", role)], capture_output=True, text=True, check=False, timeout=60)
    assert said in done.stderr
    assert done.returncode == -signal.SIGALRM
