"""Processes known by pid and start time: a recycled pid is somebody else, and is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.broker.process import Process, await_death, end_all, spawn, start_time
from schemas.errors import SetupError

STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


@pytest.fixture
def sleeper(tmp_path: Path) -> Iterator[Process]:
    process = spawn([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "log")
    yield process
    end_all([process], grace_s=0.1)


def test_a_recycled_pid_gets_no_signal(sleeper: Process) -> None:
    earlier = replace(sleeper, started=sleeper.started + "0")
    assert not earlier.is_alive()
    assert not earlier.signal(signal.SIGKILL)
    end_all([earlier], grace_s=0.1)
    assert sleeper.is_alive()


def test_start_times_tell_processes_apart_and_stay() -> None:
    assert start_time(os.getpid()) == start_time(os.getpid())
    assert start_time(os.getpid()) != start_time(1)


def test_a_child_that_ended_is_dead_and_not_a_zombie(sleeper: Process) -> None:
    os.kill(sleeper.pid, signal.SIGKILL)
    assert await_death([sleeper], deadline_s=10)
    with pytest.raises(ProcessLookupError):
        os.kill(sleeper.pid, 0)


def test_the_dead_child_of_another_process_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    try:
        assert child.pid > 0
        until = time.monotonic() + 10
        while start_time(child.pid) is not None:  # a zombie until `wait` below
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        child.wait()


def test_sigkill_ends_what_does_not_hear_sigterm(tmp_path: Path) -> None:
    log = tmp_path / "log"
    process = spawn([sys.executable, "-c", STUBBORN], log)
    until = time.monotonic() + 10
    while "deaf" not in log.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)
    end_all([process], grace_s=0.2)
    assert not process.is_alive()


def test_a_frozen_process_hears_sigterm(sleeper: Process) -> None:
    sleeper.signal(signal.SIGSTOP)
    end_all([sleeper], grace_s=10)
    assert not sleeper.is_alive()


def test_a_process_lives_in_its_own_session(sleeper: Process) -> None:
    assert os.getsid(sleeper.pid) == sleeper.pid


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    process = spawn([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr)"], tmp_path / "log")
    assert await_death([process], deadline_s=10)
    assert sorted((tmp_path / "log").read_text().split()) == ["err", "out"]


def test_a_missing_executable_is_a_setup_error(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="/nowhere/java cannot be started"):
        spawn(["/nowhere/java"], tmp_path / "log")


def test_the_exit_code_waits_for_threads_that_outlive_the_main_one(tmp_path: Path) -> None:
    threads = "[threading.Thread(target=time.sleep, args=(60,)).start() for _ in range(64)]"
    code = f"import os, threading, time; {threads}; os.kill(os.getpid(), 9)"
    for _ in range(5):
        process = spawn([sys.executable, "-c", code], tmp_path / "log")
        while process.is_alive():
            pass
        assert process.exit_code() == -9
