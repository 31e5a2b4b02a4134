"""The whole trainer with torch: whatever interrupts it, the weights are those of an undisturbed run, bit for bit (R7)."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

import trainer.loop
from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import initial
from models.weights import fetch, weights_sha256
from schemas.errors import UsageError
from schemas.training import Step, WeightVersion
from streams.log import Log
from tests.unit.trainer.runs import Crash, open_log, require_once, require_versions, run_trainer, trainer_settings, training, write_groups
from trainer.initial import read_model, write_model
from trainer.learner import Learner, OptimizerSettings
from trainer.learning import TorchTrainee
from trainer.recover import read_places
from trainer.settings import TrainerSettings
from trainer.update import LossSettings, apply

pytestmark = [pytest.mark.anyio, pytest.mark.torch]
CONFIG = Qwen2Config(vocab_size=58, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)


def folders(root: Path, **changes: object) -> TrainerSettings:
    model_dir = root / "model"
    if not model_dir.exists():
        write_model(model_dir, initial(CONFIG, seed=3), CharacterChat())
    return trainer_settings(model_dir=model_dir, weights_dir=root / "weights", checkpoint_dir=root / "checkpoints", **changes)


async def run_torch(log: Log, settings: TrainerSettings) -> None:
    await run_trainer(log, settings, TorchTrainee(settings))


async def steps_of(log: Log) -> list[Step]:
    return [each for each in await training(log) if isinstance(each, Step)]


async def undisturbed(root: Path) -> list[Step]:
    log = await open_log()
    write_groups(log, 8)
    with anyio.fail_after(60):
        await run_torch(log, folders(root))
    return await steps_of(log)


@pytest.mark.parametrize("recovery_s", [0.0, 1e9], ids=["checkpoints", "no checkpoint"])
async def test_weights_after_deaths_are_those_of_an_undisturbed_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, recovery_s: float
) -> None:
    expected = await undisturbed(tmp_path / "undisturbed")
    log, passes = await open_log(), 0
    settings = folders(tmp_path / "disturbed", recovery_s=recovery_s)
    write_groups(log, 8)

    def die_now_and_then(name: str) -> None:
        nonlocal passes
        passes += 1
        if passes % 5 == 3:
            raise Crash

    monkeypatch.setattr(trainer.loop, "failpoint", die_now_and_then)
    lives = 0
    with anyio.fail_after(60):
        while len(await steps_of(log)) < settings.steps:
            lives += 1
            try:
                await run_torch(log, settings)
            except* Crash:
                pass
    assert lives > 3
    records = await training(log)
    require_once(records, groups=8)
    require_versions(records)
    found = await steps_of(log)
    assert [step.plan for step in found] == [step.plan for step in expected]
    assert [step.weights_sha256 for step in found] == [step.weights_sha256 for step in expected]
    assert [step.optimizer_sha256 for step in found] == [step.optimizer_sha256 for step in expected]
    assert len({step.weights_sha256 for step in found}) == settings.steps


async def test_anyone_recomputes_a_version_from_the_log(tmp_path: Path) -> None:
    log, settings = await open_log(), folders(tmp_path)
    write_groups(log, 8)
    with anyio.fail_after(60):
        await run_torch(log, settings)
    versions = {each.version: each for each in await training(log) if isinstance(each, WeightVersion)}
    model, _ = read_model(settings.model_dir)
    learner = Learner(model, OptimizerSettings())
    for step in await steps_of(log):
        apply(learner, step.plan, await read_places(log, step.plan.places), LossSettings())
        assert learner.digests() == (step.weights_sha256, step.optimizer_sha256)
        assert step.published is not None
        assert weights_sha256(fetch(versions[step.published])) == step.weights_sha256
        assert step.numerics["threads"] == "1"
        assert {"loss", "grad_norm", "entropy", "reward_mean", "update_ms"} <= step.metrics.keys()


async def test_another_model_folder_than_the_run_began_with_is_refused(tmp_path: Path) -> None:
    log, settings = await open_log(), folders(tmp_path, steps=0)
    with anyio.fail_after(60):
        await run_torch(log, settings)
        write_model(settings.model_dir, initial(CONFIG, seed=3), CharacterChat("abc"))
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_torch(log, settings)
    assert caught.group_contains(UsageError, match="not what this run began with")


def test_wrong_settings_are_refused_before_anything_is_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="loss 'best'"):
        TorchTrainee(folders(tmp_path, loss="best"))
    with pytest.raises(UsageError, match=r"trainer\.optimizer"):
        TorchTrainee(folders(tmp_path, optimizer={"speed": 1}))
