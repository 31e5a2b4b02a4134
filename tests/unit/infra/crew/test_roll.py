"""The roll: what was left behind is ended by whoever comes next, and nobody else is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from infra.broker.process import Process, start_time
from infra.crew.roll import Roll, end_crew, read_roll, require_vacant, strike_roll, write_roll
from schemas.errors import SetupError


@pytest.fixture
def sleeper() -> Iterator[Process]:
    """A process that ends only when it is asked to."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"]) as child:
        yield Process(child.pid, start_time(child.pid) or "")
        child.kill()


def write(run_dir: Path, crew: Process, members: dict[str, Process]) -> None:
    (run_dir / "crew.json").write_bytes(msgspec.json.encode(Roll(crew=crew, members=members)))


GONE = Process(os.getpid(), "another boot/1")
"""A pid that somebody else has now."""


def test_members_of_a_crew_that_was_killed_are_ended(tmp_path: Path, sleeper: Process) -> None:
    write(tmp_path, GONE, {"gateway": sleeper, "reward": GONE})
    assert end_crew(tmp_path) == ["gateway"]
    assert not sleeper.is_alive()
    assert read_roll(tmp_path) is None


def test_a_process_that_got_a_recycled_pid_is_left_alone(tmp_path: Path, sleeper: Process) -> None:
    write(tmp_path, GONE, {"gateway": Process(sleeper.pid, "another boot/1")})
    assert end_crew(tmp_path) == []
    assert sleeper.is_alive()


def test_the_own_process_is_never_ended(tmp_path: Path) -> None:
    write_roll(tmp_path, {})
    assert end_crew(tmp_path) == []


def test_a_run_folder_has_one_crew(tmp_path: Path, sleeper: Process) -> None:
    write(tmp_path, sleeper, {})
    with pytest.raises(SetupError, match=f"process {sleeper.pid} runs a pipeline in .*seamlessflow down"):
        require_vacant(tmp_path)
    write(tmp_path, GONE, {})
    require_vacant(tmp_path)


def test_a_roll_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_roll(tmp_path) is None
    (tmp_path / "crew.json").write_text("{torn")
    assert read_roll(tmp_path) is None
    assert end_crew(tmp_path) == []
    strike_roll(tmp_path)
    strike_roll(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SetupError, match=r"file cannot be written: .*name another run folder"):
        write_roll(tmp_path / "file", {})
