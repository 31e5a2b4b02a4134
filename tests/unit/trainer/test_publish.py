"""Versions and model folders."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import initial
from models.weights import fetch, weights_sha256
from schemas.errors import UsageError
from trainer.initial import MODEL_FILE, read_model, write_model
from trainer.publish import publish

pytestmark = pytest.mark.torch
CHAT = CharacterChat()
MODEL = initial(Qwen2Config(vocab_size=CHAT.vocabulary_size, hidden_size=32, intermediate_size=48), seed=3)


def test_a_published_version_is_fetched_as_it_was(tmp_path: Path) -> None:
    version = publish(tmp_path, MODEL, CHAT, version=4, step=9)
    assert (version.version, version.step) == (4, 9)
    assert version.weights_sha256 == weights_sha256(MODEL.state_dict())
    assert (version.tokenizer_sha256, version.template_sha256) == (CHAT.tokenizer_sha256, CHAT.template_sha256)
    assert Qwen2Config.from_dict(version.config) == MODEL.config
    assert all(torch.equal(tensor, MODEL.state_dict()[name]) for name, tensor in fetch(version).items())


def test_equal_weights_are_one_file(tmp_path: Path) -> None:
    publish(tmp_path, MODEL, CHAT, version=0, step=None)
    publish(tmp_path, MODEL, CHAT, version=1, step=1)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(("version", "step"), [(0, 1), (2, None)])
def test_only_version_0_has_no_step(tmp_path: Path, version: int, step: int | None) -> None:
    with pytest.raises(ValueError, match="initial model"):
        publish(tmp_path, MODEL, CHAT, version=version, step=step)


def test_a_model_folder_is_read_as_it_was_written(tmp_path: Path) -> None:
    write_model(tmp_path / "model", MODEL, CHAT)
    model, chat = read_model(tmp_path / "model")
    assert model.config == MODEL.config
    assert weights_sha256(model.state_dict()) == weights_sha256(MODEL.state_dict())
    assert (chat.tokenizer_sha256, chat.template_sha256) == (CHAT.tokenizer_sha256, CHAT.template_sha256)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    write_model(tmp_path, MODEL, CHAT)
    Qwen2Config(vocab_size=CHAT.vocabulary_size).write(tmp_path)
    with pytest.raises(UsageError, match=f"{MODEL_FILE} cannot be used as weights"):
        read_model(tmp_path)
