"""What training rests on: a trainer that is too slow, weights that are not there, and steps that are made again."""

from __future__ import annotations

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import anyio

from infra.crew.member import Spec
from models.config import Qwen2Config
from schemas.errors import EngineError
from schemas.node import NodeStatus
from schemas.task import Task
from schemas.topics import NODES, TASKS
from schemas.training import WeightFile
from tests.chaos.row import Happened, Skip, row
from tests.chaos.stage import Stage
from tests.flow.harness import SOURCE, publish
from tests.flow.paper_trainer import GROUPS_PER_STEP
from tests.flow.seen import groups_of
from workers.source.settings import SourceSettings

STEP_S, SLOW_STEPS = 4.0, 4
GROWTH_MIB = 48
"""More than caches and clients take while they warm up; a queue without a bound would pass it soon."""


@row("a trainer that is ten times slower than its workers", scene="loop")
async def slow_trainer(stage: Stage) -> Happened:
    """What is in flight stays within the staleness bound, memory stays as it is, and nothing is thrown away."""
    pipeline, seen = stage.pipeline, stage.seen
    most = (SourceSettings.model_validate(SOURCE).staleness_bound + 1) * GROUPS_PER_STEP
    quick_s = step_s(stage)
    pipeline.crew.end(["trainer"])
    pipeline.start_trainer("trainer-slow", STEP_S)
    await pipeline.ready("trainer-slow")
    await seen.more_steps(1)
    before, dropped = memory_mib(stage), reasons(stage)
    await seen.more_steps(SLOW_STEPS)
    grown = {name: after - before[name] for name, after in memory_mib(stage).items() if name in before}
    assert max(grown.values()) < GROWTH_MIB, f"memory grew, in MiB: {grown}"
    in_flight = greatest_in_flight(stage)
    assert in_flight <= most, f"{in_flight} groups were in flight, the bound is {most}"
    thrown = reasons(stage) - dropped
    assert set(thrown) <= {"group decided"}, f"thrown away: {thrown}"
    pipeline.crew.end(["trainer-slow"])
    await pipeline.restart("trainer")
    fired = f"steps took {STEP_S} s instead of {quick_s:.3f} s; at most {in_flight} groups in flight, {max(grown.values())} MiB more"
    return Happened(fired if 10 * quick_s <= STEP_S else "")


def greatest_in_flight(stage: Stage) -> int:
    """The most groups that were given out and not decided at any time, by the log's clock."""
    decided = [(entry.timestamp_ms, -len(groups_of(entry.record))) for entry in stage.seen.decisions()]
    begun: dict[int, int] = {}
    for task in stage.seen.all(TASKS, Task):
        if task.record.purpose == "train":
            begun.setdefault(task.record.group, task.timestamp_ms)
    changes = sorted([*decided, *((at_ms, 1) for at_ms in begun.values())])
    return max(itertools.accumulate(change for _, change in changes))


def step_s(stage: Stage) -> float:
    """How long the work on a step took so far."""
    times_ms = [entry.record.metrics["update_ms"] + entry.record.metrics["publish_ms"] for entry in stage.seen.steps()]
    return sum(times_ms) / len(times_ms) / 1000


def reasons(stage: Stage) -> Counter[str]:
    """Why sessions were dropped so far."""
    return Counter(drop.reason for entry in stage.seen.decisions() for drop in entry.record.drops)


def memory_mib(stage: Stage) -> dict[str, int]:
    """What each member holds in memory.

    :raises Skip: this system does not say.
    """
    found = {}
    for name, member in stage.pipeline.crew.members.items():
        if member.process is not None and member.is_alive:
            status = Path(f"/proc/{member.process.pid}/status")
            if not status.exists():
                raise Skip("there is no /proc here: memory cannot be measured")
            (line,) = [each for each in status.read_text().splitlines() if each.startswith("VmRSS")]
            found[name] = int(line.split()[1]) // 1024
    return found


@row("all steps are made again, twice, in other processes", scene="loop")
async def replayed(stage: Stage) -> Happened:
    """Equal digests, step by step, in both processes and in the log."""
    pipeline = stage.pipeline
    await stage.seen.more_steps(1)
    expected = {entry.record.step: entry.record.weights_sha256 for entry in stage.seen.steps()}
    command = [sys.executable, "-m", "tests.chaos.replay", pipeline.connection.address(), pipeline.connection.namespace]
    said = [(await anyio.run_process(command)).stdout for _ in range(2)]
    for made in map(json.loads, said):
        assert expected == {int(step): digest for step, digest in made.items() if int(step) in expected}
    return Happened(f"{len(expected)} steps made again in two processes")


TORCH = "rollout-torch"
CONFIG = Qwen2Config(hidden_size=32, intermediate_size=48, num_key_value_heads=2)


@row("a version announced before its files, with a wrong digest, with a missing file", is_alone=True)
async def broken_weights(stage: Stage) -> Happened:
    """A worker with a real network refuses each and ends; it serves again as soon as there is a version that is whole."""
    files = whole_files(stage)
    pipeline = stage.pipeline
    pipeline.crew.end(["rollout-0", "rollout-1"])
    early = await publish(pipeline.log(), [files["early"]], files.digest("early"))
    fired = [await refuses(stage, early, "cannot be read")]
    files.bring("early")
    await serves(stage, early)
    wrong = await publish(pipeline.log(), [files["wrong"]], "0" * 64)
    fired.append(await refuses(stage, wrong, "have digest", is_running=True))
    missing = await publish(pipeline.log(), [files["missing"]], files.digest("missing"))
    fired.append(await refuses(stage, missing, "cannot be read"))
    files.bring("good")
    await serves(stage, await publish(pipeline.log(), [files["good"]], files.digest("good")))
    pipeline.crew.end([TORCH])
    served = {entry.record.version for entry in stage.seen.all(NODES, NodeStatus) if entry.record.node == TORCH}
    assert not served & {wrong, missing}, "it served weights that are not those of the log"
    for member in ("rollout-0", "rollout-1"):
        await pipeline.restart(member)
    async with stage.agents(tokens=30):
        pass
    return Happened("; ".join(fired))


async def refuses(stage: Stage, version: int, why: str, *, is_running: bool = False) -> str:
    """The worker ends because of this version; answers the proof."""
    if not is_running:
        await start_torch(stage)
    assert await stage.pipeline.exit_code(TORCH) == EngineError.exit_code, stage.pipeline.crew.members[TORCH].last_words()
    assert why in stage.pipeline.crew.members[TORCH].last_words()
    return f"version {version} {why}"


async def serves(stage: Stage, version: int) -> None:
    """The worker, started again, says that it serves this version."""
    await start_torch(stage)
    await stage.seen.until(
        lambda: any((each.record.node, each.record.version) == (TORCH, version) for each in stage.seen.all(NODES, NodeStatus)),
        f"the worker to serve version {version}",
    )


async def start_torch(stage: Stage) -> None:
    """Start the worker, without waiting for it."""
    settings = {"engine": "torch", "node": TORCH, "model_dir": stage.pipeline.connection.run_dir / "model"}
    stage.pipeline.crew.start([Spec(TORCH, "rollout", settings)])


class Files:
    """Weight files by name: each is kept aside until it is brought to the place that its record names."""

    def __init__(self, folder: Path) -> None:
        from models.qwen2 import initial
        from models.weights import weights_sha256, write_weights

        self._folder = folder
        self._records: dict[str, WeightFile] = {}
        self._digests: dict[str, str] = {}
        for seed, name in enumerate(("early", "wrong", "missing", "good")):
            tensors = initial(CONFIG, seed=seed).state_dict()
            self._records[name], self._digests[name] = write_weights(folder / name, tensors), weights_sha256(tensors)
            if name != "wrong":
                (folder / name).rename(folder / f"{name}.aside")

    def __getitem__(self, name: str) -> WeightFile:
        return self._records[name]

    def digest(self, name: str) -> str:
        """Of the tensors."""
        return self._digests[name]

    def bring(self, name: str) -> None:
        """Now the files are there."""
        (self._folder / f"{name}.aside").rename(self._folder / name)


def whole_files(stage: Stage) -> Files:
    """Four sets of weights; the model folder gets the shape of their network.

    :raises Skip: there is no torch.
    """
    try:
        files = Files(stage.pipeline.connection.run_dir / "weights")
    except ImportError as missing:
        raise Skip(f"no torch: {missing}") from missing
    CONFIG.write(stage.pipeline.connection.run_dir / "model")
    return files
