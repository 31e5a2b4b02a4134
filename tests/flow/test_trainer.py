"""The trainer as a process over real Kafka, killed at each of its failpoints, and frozen while a successor takes over."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import anyio
import pytest
from anyio.abc import Process

from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import initial
from schemas.errors import Superseded
from schemas.training import Step
from streams.failpoint import VARIABLE
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics
from tests.unit.trainer.runs import PARTITIONS, groups_of_records, require_once, require_versions, trainer_settings, training
from trainer.initial import write_model
from trainer.settings import TrainerSettings

pytestmark = [pytest.mark.anyio, pytest.mark.torch]

ROOT = Path(__file__).parents[2]
GROUPS = 8
DEADLINE_S = 100.0
CONFIG = Qwen2Config(vocab_size=58, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)


@pytest.fixture
async def log(kafka_bootstrap: str, namespace: str) -> Log:
    broker = KafkaBroker(kafka_bootstrap, client_id="test-trainer")
    await ensure_topics(broker, namespace, PARTITIONS)
    filled = Log(broker, namespace, "test")
    async with filled.writer() as writer:
        receipts = [await writer.send(*written) for written in groups_of_records(GROUPS)]
        for receipt in receipts:
            await receipt
    return filled


@pytest.fixture
def settings(tmp_path: Path) -> TrainerSettings:
    write_model(tmp_path / "model", initial(CONFIG, seed=3), CharacterChat())
    return trainer_settings(
        model_dir=tmp_path / "model", weights_dir=tmp_path / "weights", checkpoint_dir=tmp_path / "checkpoints", steps=GROUPS // 2
    )


async def start(log: Log, bootstrap: str, settings: TrainerSettings, failpoint: str = "") -> Process:
    command = [sys.executable, "-m", "tests.flow.trainer_process", bootstrap, log.namespace, settings.model_dump_json()]
    return await anyio.open_process(command, stdout=None, stderr=None, env={**os.environ, VARIABLE: failpoint}, cwd=ROOT)


async def exit_code(process: Process) -> int:
    with anyio.fail_after(DEADLINE_S):
        return await process.wait()


async def require_recomputable(log: Log, bootstrap: str) -> None:
    """Every version, again from version 0, in a process of its own that knows nothing but the log."""
    command = [sys.executable, "-m", "infra.cli.main", "audit", "recompute", "-f", "json"]
    with anyio.fail_after(DEADLINE_S):
        done = await anyio.run_process([*command, "--bootstrap", bootstrap, "--namespace", log.namespace], stderr=None, cwd=ROOT)
    report = json.loads(done.stdout)
    print(report)
    assert (report["verdict"], report["start"], report["outcomes"]) == ("equal", 0, {"equal": GROUPS // 2})
    assert report["versions_equal"] == GROUPS // 2


@pytest.mark.timeout(400)
async def test_killed_at_each_failpoint_in_turn(log: Log, kafka_bootstrap: str, settings: TrainerSettings) -> None:
    for failpoint in ("after_fetch", "after_update", "after_files", "after_commit"):
        process = await start(log, kafka_bootstrap, settings, f"trainer.{failpoint}")
        assert await exit_code(process) == -signal.SIGKILL
    assert await exit_code(await start(log, kafka_bootstrap, settings)) == 0
    records = await training(log)
    require_once(records, groups=GROUPS)
    require_versions(records)
    await require_recomputable(log, kafka_bootstrap)


@pytest.mark.timeout(400)
async def test_a_frozen_trainer_is_superseded_when_it_wakes(log: Log, kafka_bootstrap: str, settings: TrainerSettings) -> None:
    zombie = await start(log, kafka_bootstrap, settings)
    try:
        with anyio.fail_after(DEADLINE_S):
            while not any(isinstance(each, Step) for each in await training(log)):
                await anyio.sleep(0.01)
        zombie.send_signal(signal.SIGSTOP)
        assert await exit_code(await start(log, kafka_bootstrap, settings)) == 0
        zombie.send_signal(signal.SIGCONT)
        # It may have finished before it was frozen; else it must notice.
        assert await exit_code(zombie) in (0, Superseded.exit_code)
    finally:
        if zombie.returncode is None:
            zombie.kill()
    records = await training(log)
    require_once(records, groups=GROUPS)
    require_versions(records)
