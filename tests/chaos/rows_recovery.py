"""Recoveries that do not find all as it was: an owner that begins at a snapshot, a trainer whose arithmetic has changed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import anyio

from models.chat import CharacterChat
from models.config import Qwen2Config
from schemas.record import Record
from schemas.training import Step, WeightVersion
from streams.failpoint import VARIABLE
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics
from tests.chaos.row import Happened, Skip, row
from tests.chaos.stage import Stage
from tests.flow.harness import WORKERS
from tests.flow.seen import DEADLINE_S
from tests.unit.trainer.runs import MEMBERS, PARTITIONS, decided, groups_of_records, trainer_settings, training
from trainer.settings import TrainerSettings

SNAPSHOT_BYTES = 2000
"""A few spans are worth a snapshot."""
LOOK_S = 0.1


@row("kill an owner of long sessions that keeps snapshots", is_alone=True)
async def owner_with_snapshots_dies(stage: Stage) -> Happened:
    """The next owner begins at the snapshots, not at the Opens; every session goes on whole."""
    folder = stage.pipeline.connection.run_dir / "snapshots"
    for member in WORKERS:
        await stage.reconfigure(member, snapshots=folder, snapshot_bytes=SNAPSHOT_BYTES)
    async with stage.agents(8, tokens=150, turns=3) as work:
        victim = await stage.busiest()
        (heir,) = (name for name in WORKERS if name != victim)
        await kept_all(stage, victim)
        held, before = stage.held(victim), len(said(stage, heir, "taken"))
        stage.kill(victim)
        await stage.taken_over(victim, held)
    assert not work.broken
    taken = said(stage, heir, "taken")[before:]
    by_snapshot = held & {partition for each in taken for partition in each["by_snapshot"]}
    return Happened(f"{victim} died by SIGKILL; {heir} took partitions {sorted(by_snapshot)} by snapshot" if by_snapshot else "")


async def kept_all(stage: Stage, node: str) -> None:
    """Wait until a worker has announced a snapshot of each of its partitions."""
    with anyio.fail_after(DEADLINE_S):
        while stage.held(node) - {each["partition"] for each in said(stage, node, "snapshot kept")}:
            await anyio.sleep(LOOK_S)


def said(stage: Stage, member: str, event: str) -> list[dict[str, object]]:
    """The events of one kind in a member's log."""
    lines = [line for line in stage.pipeline.said(member).splitlines() if line.startswith("{")]
    return [found for found in map(json.loads, lines) if found["event"] == event]


NAMESPACE = "threads."
GROUPS, UNEVEN = 4, 8
"""Two groups a step; with sessions of such lengths, whichever groups meet, two threads sum in another order than one: tried."""
CONFIG = Qwen2Config(vocab_size=58, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)


@row("a killed trainer comes back with another number of threads", scene="bare")
async def other_threads(stage: Stage) -> Happened:
    """Its weights are not those of the log: it says so by a version of its own and goes on; an auditor makes all of them again."""
    folder = stage.folder / "threads"
    write_initial(folder / "model")
    log = await filled_log(stage)
    assert await train(stage, settings_in(folder, threads=1), "trainer.after_commit:1") == -signal.SIGKILL
    assert await train(stage, settings_in(folder, threads=2)) == 0
    records = await training(log)
    threads = [each.numerics["threads"] for each in records if isinstance(each, Step)]
    assert threads == ["1", "2"], f"the steps were made with {threads} threads"
    again = [each for each in records if isinstance(each, WeightVersion) and each.again_from is not None]
    verdict = await recomputed(stage)
    if not again and verdict == await recomputed(stage, "--threads", "2") == "equal":
        raise Skip("one thread and two give the same bits on this CPU")
    lost, twice = miscounted(records)
    fired = [f"version {each.version} was made again from step {each.again_from} with {each.numerics['threads']} threads" for each in again]
    return Happened(f"{'; '.join(fired)}; recomputed: {verdict}" if fired and verdict == "equal" else "", lost=lost, twice=twice)


def write_initial(folder: Path) -> None:
    """The model of version 0.

    :raises Skip: there is no torch.
    """
    try:
        from models.qwen2 import initial
        from trainer.initial import write_model
    except ImportError as missing:
        raise Skip(f"no torch: {missing}") from missing
    write_model(folder, initial(CONFIG, seed=3), CharacterChat())


async def filled_log(stage: Stage) -> Log:
    """A namespace with all that a trainer reads."""
    log = Log(KafkaBroker(stage.kafka.bootstrap, client_id="chaos"), NAMESPACE, "chaos")
    await ensure_topics(log.broker, NAMESPACE, PARTITIONS)
    async with log.writer() as writer:
        for receipt in [await writer.send(*written) for written in groups_of_records(GROUPS, uneven=UNEVEN)]:
            await receipt
    return log


def settings_in(folder: Path, threads: int) -> TrainerSettings:
    """For all steps, with no checkpoint but version 0."""
    folders = {"model_dir": folder / "model", "weights_dir": folder / "weights", "checkpoint_dir": folder / "checkpoints"}
    return trainer_settings(**folders, threads=threads, steps=GROUPS // 2)


async def train(stage: Stage, settings: TrainerSettings, failpoint: str = "") -> int:
    """A trainer's life in a process of its own; answers how it ended."""
    command = [sys.executable, "-m", "tests.flow.trainer_process", stage.kafka.bootstrap, NAMESPACE, settings.model_dump_json()]
    with (stage.folder / "threads" / "trainer.log").open("ab") as output:
        environment = {**os.environ, VARIABLE: failpoint}
        async with await anyio.open_process(command, stdout=output, stderr=output, env=environment) as process:
            return await process.wait()


async def recomputed(stage: Stage, *flags: str) -> str:
    """What an auditor says, who trains every Step again in a process of its own."""
    command = [sys.executable, "-m", "infra.cli.main", "audit", "recompute", "-f", "json", *flags]
    done = await anyio.run_process([*command, "--bootstrap", stage.kafka.bootstrap, "--namespace", NAMESPACE], check=False)
    return str(json.loads(done.stdout)["verdict"])


def miscounted(records: Sequence[Record]) -> tuple[int, int]:
    """Sessions in no Step or Drops; sessions that are in two, and tokens that were trained twice."""
    sessions = {(group % PARTITIONS, 2 * (group * MEMBERS + member)) for group in range(GROUPS) for member in range(MEMBERS)}
    decisions = Counter(decided(records))
    tokens = Counter(
        (step.plan.places[part.place].session, node, index)
        for step in records if isinstance(step, Step) for part in step.plan.rows for node in part.nodes
        for begin, end in zip(part.train_from, part.train_to, strict=True) for index in range(begin, end)
    )  # fmt: skip
    return len(sessions - set(decisions)), sum(count > 1 for count in [*decisions.values(), *tokens.values()])
