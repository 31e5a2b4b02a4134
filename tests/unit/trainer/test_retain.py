"""Which published weights keep their files."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import initial
from models.weights import fetch
from schemas.errors import EngineError
from schemas.training import WeightFile, WeightVersion
from tests.unit.trainer.runs import open_log, run_trainer, trainer_settings, training, write_groups
from trainer.initial import write_model
from trainer.learning import TorchTrainee
from trainer.retain import files_from, gone, removable

CONFIG = Qwen2Config(vocab_size=58, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)


@pytest.mark.parametrize(
    ("version", "before", "keep", "expected"),
    [(9, 0, 0, 0), (2, 0, 3, 0), (3, 0, 3, 1), (9, 0, 3, 7), (9, 8, 3, 8), (9, 4, 0, 4)],
)
def test_what_may_be_gone_never_comes_back(version: int, before: int, keep: int, expected: int) -> None:
    assert files_from(version, before, keep) == expected


def test_the_newest_those_of_checkpoints_and_version_0_stay() -> None:
    assert gone([0, 1, 2, 3, 4, 5], 4, [2]) == [1, 3]
    assert gone([0, 1, 2], 1, []) == []


def test_a_file_that_another_version_has_too_stays() -> None:
    def of(*digests: str) -> list[WeightFile]:
        return [WeightFile(uri=digest, sha256=digest, bytes=1) for digest in digests]

    assert removable({0: of("a"), 1: of("a", "b"), 2: of("b", "c"), 3: of("d")}, [1, 2]) == {"b", "c"}
    assert removable({0: of("a"), 1: of("a", "b"), 2: of("b", "c"), 3: of("d")}, [1]) == set()


def is_there(version: WeightVersion) -> bool:
    try:
        fetch(version)
    except EngineError:
        return False
    return True


@pytest.mark.anyio
@pytest.mark.torch
async def test_a_run_keeps_what_its_settings_say(tmp_path: Path) -> None:
    """The checkpoint of step 3 keeps the files of version 3, until the third life writes one of step 6 and removes no more."""
    write_model(tmp_path / "model", initial(CONFIG, seed=3), CharacterChat())
    folders = {"model_dir": tmp_path / "model", "weights_dir": tmp_path / "weights", "checkpoint_dir": tmp_path / "checkpoints"}
    lives = [({"steps": 3, "recovery_s": 0.0, "keep_versions": 2}, [0, 2, 3]), ({"steps": 6, "keep_versions": 2}, [0, 3, 5, 6])]
    log = await open_log()
    write_groups(log, 16)
    for changes, expected in (*lives, ({"steps": 8, "keep_versions": 0}, [0, 5, 6, 7, 8])):
        settings = trainer_settings(checkpoints_kept=1, **folders, **changes)
        with anyio.fail_after(60):
            await run_trainer(log, settings, TorchTrainee(settings))
        versions = [each for each in await training(log) if isinstance(each, WeightVersion)]
        assert [each.version for each in versions if is_there(each)] == expected
    assert [each.files_from for each in versions] == [0, 0, 1, 2, 3, 4, 5, 5, 5]
