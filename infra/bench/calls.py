"""Benchmark of an agent's call: gateway, Kafka and a rollout worker, against the same gateway with the engine in its process, in turns.

Gateway, rollout worker and scheduler are processes of their own, and so is the client. Added latency is the difference of the quantiles.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from infra.bench.client import Measured
from infra.bench.direct import PARTITIONS, WEIGHTS
from infra.bench.engine import ENGINE_S, TOKENS_PER_S
from infra.bench.measure import cpu_time_s, quantile, rotated
from infra.bench.stage import Tell, fresh_namespace, log_of, run
from infra.crew.crew import Crew, open_crew
from infra.crew.member import Spec
from models.chat import NumberChat
from schemas.errors import SetupError
from schemas.settings import Connection
from schemas.topics import TRAINING
from streams.cas import open_cas

ROUNDS = 3
CALLS = {1: 60, 32: 1_600}
QUICK_CALLS = {1: 3, 32: 64}
"""Calls a round by how many are in flight."""
WARM_UP = (32, 256)
"""In flight and calls: every partition is claimed and every path was walked before the clock runs."""
CLIENT_S = 180.0
LOGGED, DIRECT = "gateway", "direct"
PROCESSES = ("gateway", "rollout")


@dataclass(slots=True)
class Side:
    """What one side took at one number of calls in flight. `rates` are calls a second, one a round."""

    latencies_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def ms(self, share: float) -> float:
        """A quantile of the latency."""
        return quantile(self.latencies_ms, share)


@dataclass(slots=True)
class CallFigures:
    """Both sides at one number of calls in flight; `cpu_us` is CPU time a call by process of the side with the log."""

    logged: Side = field(default_factory=Side)
    direct: Side = field(default_factory=Side)
    cpu_us: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PROCESSES, 0.0))

    def added_ms(self, share: float) -> float:
        """What the log adds at a quantile."""
        return self.logged.ms(share) - self.direct.ms(share)


def measure_calls(connection: Connection, tell: Tell, *, quick: bool) -> dict[int, CallFigures]:
    """Figures by calls in flight.

    :raises SetupError: a process ended, or a call failed.
    """
    figures: dict[int, CallFigures] = {}
    with fresh_namespace(connection, PARTITIONS) as own, _gateways(own) as (crew, urls):
        for url in urls.values():
            _client(url, *WARM_UP)
        for in_flight, calls in (QUICK_CALLS if quick else CALLS).items():
            found = figures[in_flight] = CallFigures()
            for number in range(1 if quick else ROUNDS):
                _round(crew, urls, found, number, in_flight, calls)
                tell(f"calls, {in_flight} in flight: round {number + 1}, the log adds {found.added_ms(0.5):.1f} ms")
    return figures


@contextmanager
def _gateways(connection: Connection) -> Iterator[tuple[Crew, dict[str, str]]]:
    """All processes but the client; answers the addresses of both gateways."""
    folder = connection.run_dir / "calls"
    folder.mkdir(parents=True, exist_ok=True)
    NumberChat().save(folder)
    run(partial(_announce, connection))
    files = {name: folder / f"{name}.url" for name in (LOGGED, DIRECT)}
    with open_crew(connection, lambda _: None) as crew:
        crew.start(_specs(folder, files))
        crew.await_ready(list(crew.members))
        yield crew, {name: file.read_text().strip() for name, file in files.items()}


async def _announce(connection: Connection) -> None:
    async with open_cas(log_of(connection), TRAINING) as cas:
        await cas.write([(0, WEIGHTS)])


def _specs(folder: Path, files: Mapping[str, Path]) -> list[Spec]:
    gateway = {"model_dir": folder, "context_tokens": 100_000}
    rollout = {"engine": "paced", "model_dir": folder, "paced_tokens_per_s": TOKENS_PER_S, "paced_first_token_s": ENGINE_S}
    return [
        Spec("scheduler", "scheduler"),
        Spec("rollout", "rollout", rollout),
        Spec(LOGGED, "gateway", {**gateway, "address_file": files[LOGGED]}),
        Spec(DIRECT, "bench_direct", {**gateway, "address_file": files[DIRECT]}),
    ]


def _round(crew: Crew, urls: Mapping[str, str], figures: CallFigures, number: int, in_flight: int, calls: int) -> None:
    """Both sides once; who goes first changes from round to round."""
    for name, side in rotated(((LOGGED, figures.logged), (DIRECT, figures.direct)), number):
        before_s = _cpu_s(crew)
        side.rates.append(_measured(side, urls[name], in_flight, calls))
        if name == LOGGED:
            figures.cpu_us = {process: (spent_s - before_s[process]) / calls * 1e6 for process, spent_s in _cpu_s(crew).items()}


def _measured(side: Side, url: str, in_flight: int, calls: int) -> float:
    said = _client(url, in_flight, calls)
    side.latencies_ms += said["latencies_ms"]
    return calls / said["wall_s"]


def _client(url: str, in_flight: int, calls: int) -> Measured:
    command = [sys.executable, "-m", "infra.bench.client", url, str(in_flight), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=CLIENT_S, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["it wrote nothing"]
        raise SetupError(f"the client of the call benchmark failed: {lines[-1]}")
    said: Measured = json.loads(done.stdout)
    return said


def _cpu_s(crew: Crew) -> dict[str, float]:
    processes = {name: crew.members[name].process for name in PROCESSES}
    return {name: cpu_time_s(process.pid) for name, process in processes.items() if process is not None}
