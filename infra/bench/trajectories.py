"""Benchmark of the way from ended sessions to batch plans: assembler, reward and feed, a process each, over a log that is there before.

The clock runs from the moment at which the assembler may read (the others wait for it) to the last plan.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.bench.measure import cpu_time_s
from infra.bench.prefill import Prefill, prefill
from infra.bench.stage import Tell, fresh_namespace, log_of, run
from infra.crew.crew import Crew, open_crew
from infra.crew.member import Spec
from models.chat import NumberChat
from schemas.errors import NoProgress, SetupError
from schemas.settings import Connection

PARTITIONS = 16
GROUPS_PER_STEP = 32
GROUPS, QUICK_GROUPS = 2_560, 64
DEADLINE_S = 300.0
POLL_S = 0.05
ROLES = ("assembler", "reward", "feed")


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What was measured: `cpu_s` by role; `planned` of the sessions, in `plans`, within `wall_s`."""

    planned: int
    plans: int
    wall_s: float
    cpu_s: dict[str, float]

    @property
    def per_s(self) -> float:
        """Trajectories a second."""
        return self.planned / self.wall_s

    def cpu_us(self) -> dict[str, float]:
        """CPU microseconds a trajectory, by role."""
        return {name: spent_s / self.planned * 1e6 for name, spent_s in self.cpu_s.items()}


def measure_trajectories(connection: Connection, tell: Tell, *, quick: bool) -> Pipeline:
    """Fill a log, run the three roles over it.

    :raises SetupError: a process ended, or not every session was planned.
    """
    shape = Prefill(QUICK_GROUPS if quick else GROUPS, PARTITIONS)
    folder = connection.run_dir / "trajectories"
    folder.mkdir(parents=True, exist_ok=True)
    NumberChat().save(folder)
    result_file = folder / "feed.json"
    result_file.unlink(missing_ok=True)
    with fresh_namespace(connection, shape.partitions) as own:
        run(partial(prefill, log_of(own), shape))
        tell(f"trajectories: {shape.sessions} sessions stand in the log")
        with open_crew(own, lambda _: None) as crew:
            began_s = _start(crew, shape, folder, result_file)
            started_s = _cpu_s(crew)
            ended_s = _await_end(crew, result_file)
    cpu_s = {name: ended_s[name] - started_s[name] for name in ROLES}
    return _result(json.loads(result_file.read_text()), shape, began_s, cpu_s)


def _start(crew: Crew, shape: Prefill, folder: Path, result_file: Path) -> float:
    """Start those who wait first; answers when the assembler was ready, seconds since 1970."""
    feed = {"sessions": shape.sessions, "groups_per_step": GROUPS_PER_STEP, "result_file": result_file}
    crew.start([
        Spec("feed", "bench_feed", feed),
        Spec("reward", "reward", {"model_dir": folder, "rule": "infra.bench.rule:ParityRule"}),
    ])
    crew.await_ready(["feed", "reward"])
    crew.start([Spec("assembler", "assembler")])
    crew.await_ready(["assembler"])
    return crew.members["assembler"].ready_file.stat().st_mtime


def _await_end(crew: Crew, result_file: Path) -> dict[str, float]:
    """Wait for the feed's result; answers the CPU seconds of each role as they stood last."""
    until, cpu_s = time.monotonic() + DEADLINE_S, _cpu_s(crew)
    while not (crew.members["feed"].has_finished and result_file.exists()):
        for name in ROLES:
            member = crew.members[name]
            if not member.is_alive and not member.has_finished:
                raise SetupError(f"{name} ended: {member.last_words()}")
        cpu_s = {name: max(cpu_s[name], spent_s) for name, spent_s in _cpu_s(crew).items()}
        if time.monotonic() > until:
            raise NoProgress(f"not all trajectories were planned within {DEADLINE_S:.0f} s")
        time.sleep(POLL_S)
    return cpu_s


def _cpu_s(crew: Crew) -> dict[str, float]:
    processes = {name: crew.members[name].process for name in ROLES}
    return {name: cpu_time_s(process.pid) for name, process in processes.items() if process is not None}


def _result(said: dict[str, float], shape: Prefill, began_s: float, cpu_s: dict[str, float]) -> Pipeline:
    if said["planned"] != shape.sessions:
        raise SetupError(f"{said['planned']:.0f} of {shape.sessions} sessions were planned, {said['dropped']:.0f} were dropped")
    return Pipeline(int(said["planned"]), int(said["plans"]), said["ended_at_s"] - began_s, cpu_s)
