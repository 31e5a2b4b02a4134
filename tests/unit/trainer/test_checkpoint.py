"""Checkpoints on disk: found by what is committed, whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from torch import Tensor

from schemas.errors import UsageError
from tests.unit.trainer import small
from trainer import checkpoint
from trainer.numerics import numerics_key, settle

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _settled() -> None:
    settle()


def saved(folder: Path, steps: int) -> dict[int, str]:
    """Checkpoints of the steps 0 … `steps`; returns what a log would hold: step -> weights digest."""
    subject, committed = small.learner(), {}
    for step in range(steps + 1):
        if step:
            small.train(subject, step, step)
        made = checkpoint.save(folder, subject, step=step, version=step, numerics=numerics_key())
        committed[step] = made.state.weights_sha256
    return committed


def step_of(found: checkpoint.Checkpoint | None) -> int | None:
    return found.state.step if found else None


def test_the_newest_that_is_committed(tmp_path: Path) -> None:
    committed = saved(tmp_path, 3)
    assert step_of(checkpoint.newest(tmp_path, committed)) == 3
    assert step_of(checkpoint.newest(tmp_path, {step: committed[step] for step in (0, 1, 2)})) == 2
    assert step_of(checkpoint.newest(tmp_path, {**committed, 3: "another"})) == 2, "its Step was made again, differently"
    assert checkpoint.newest(tmp_path, {7: committed[3]}) is None, "the digest of another step does not count"
    assert checkpoint.newest(tmp_path / "missing", committed) is None


def test_a_state_that_is_saved_twice_stands_once(tmp_path: Path) -> None:
    subject = small.learner()
    first = checkpoint.save(tmp_path, subject, step=0, version=0, numerics={})
    assert checkpoint.save(tmp_path, subject, step=0, version=0, numerics={}) == first
    assert [path.name for path in tmp_path.iterdir()] == [f"step-00000000-{first.state.weights_sha256[:16]}"]


def test_scalars_are_json(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    [path] = tmp_path.glob("step-00000001-*")
    state = json.loads((path / "state.json").read_text())
    assert (state["step"], state["version"], state["updates"]) == (1, 1, 4)
    assert state["numerics"] == numerics_key()
    assert sorted(each.name for each in path.iterdir()) == ["optimizer.safetensors", "state.json", "weights.safetensors"]


def test_pruning_keeps_the_newest_committed_and_what_may_be_committed_yet(tmp_path: Path) -> None:
    committed = saved(tmp_path, 4)
    abandoned = tmp_path / ".unfinished-cut-short"
    abandoned.mkdir()
    os.utime(abandoned, (0, 0))
    in_log = {0: committed[0], 1: committed[1], 2: "another", 3: committed[3]}
    removed = checkpoint.prune(tmp_path, in_log, keep=1)
    assert [int(path.name.split("-")[1]) for path in removed] == [0, 1, 2]
    assert sorted(int(path.name.split("-")[1]) for path in tmp_path.iterdir()) == [3, 4]


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Another trainer does `act` after the first file of the next checkpoint."""
    write, todo = checkpoint._write, [act]

    def write_and_act(path: Path, tensors: Mapping[str, Tensor]) -> None:
        write(path, tensors)
        if todo:
            todo.pop()()

    monkeypatch.setattr(checkpoint, "_write", write_and_act)


def test_another_trainer_that_prunes_leaves_what_is_being_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: checkpoint.prune(tmp_path, {0: "another"}, keep=1))
    committed = saved(tmp_path, 0)
    assert step_of(checkpoint.newest(tmp_path, committed)) == 0


def test_two_trainers_save_the_same_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meanwhile(monkeypatch, lambda: saved(tmp_path, 0))
    committed = saved(tmp_path, 0)
    assert step_of(checkpoint.newest(tmp_path, committed)) == 0
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
def test_a_damaged_file_is_an_error_and_never_a_wrong_weight(tmp_path: Path, name: str) -> None:
    committed = saved(tmp_path, 1)
    found = checkpoint.newest(tmp_path, committed)
    assert found is not None
    content = bytearray((found.path / name).read_bytes())
    content[-1] ^= 1
    (found.path / name).write_bytes(content)
    with pytest.raises(UsageError, match=f"{name} is damaged"):
        checkpoint.load(found, small.learner())
    (found.path / name).unlink()
    with pytest.raises(UsageError, match="remove its folder"):
        checkpoint.load(found, small.learner())


def test_a_folder_without_a_state_is_passed_over(tmp_path: Path) -> None:
    committed = saved(tmp_path, 1)
    [newest] = tmp_path.glob("step-00000001-*")
    (newest / "state.json").write_text("{")
    assert step_of(checkpoint.newest(tmp_path, committed)) == 0
