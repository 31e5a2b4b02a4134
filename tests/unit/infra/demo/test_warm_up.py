"""The demo's initial model."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.demo import warm_up as module
from infra.demo.next_letter import words
from infra.demo.warm_up import BATCH, STEPS, warm_up, write_initial_model
from models.chat import CharacterChat
from models.weights import weights_sha256
from trainer.initial import read_model
from trainer.numerics import settle

pytestmark = pytest.mark.torch


def test_the_folder_is_a_function_of_the_seed(tmp_path: Path) -> None:
    settle()
    write_initial_model(tmp_path, seed=2)
    model, chat = read_model(tmp_path)
    assert chat.vocabulary_size == 58
    assert sum(parameter.numel() for parameter in model.parameters()) == 343_936
    again = warm_up(CharacterChat(), seed=2)
    assert weights_sha256(again.state_dict()) == weights_sha256(model.state_dict())


def test_no_held_out_word_is_warmed_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    straight = module.answer

    def recorded(word: str) -> str:
        seen.add(word)
        return straight(word)

    monkeypatch.setattr(module, "answer", recorded)
    warm_up(CharacterChat(), seed=2)
    assert len(seen) > STEPS * BATCH * 0.9
    assert not seen & set(words(2).held_out)
