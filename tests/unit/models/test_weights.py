from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from models.weights import fetch, require_fit, weights_sha256, write_weights  # noqa: E402
from schemas.errors import EngineError  # noqa: E402
from schemas.training import WeightFile, WeightVersion  # noqa: E402

pytestmark = pytest.mark.torch

TENSORS = {"b": torch.tensor([[1.0, 2.0, 3.0]]), "a": torch.tensor([7], dtype=torch.int64)}


def announced(files: list[WeightFile], digest: str | None = None) -> WeightVersion:
    return WeightVersion(version=3, files=files, weights_sha256=digest or weights_sha256(TENSORS), tokenizer_sha256="", template_sha256="")


def path_of(file: WeightFile) -> Path:
    return Path(file.uri.removeprefix("file://"))


def test_the_digest_is_over_names_dtypes_shapes_and_bytes() -> None:
    one_two_three = bytes.fromhex("0000803f" "00000040" "00004040")
    by_hand = b"a int64 1\n" + (7).to_bytes(8, "little") + b"b float32 1x3\n" + one_two_three
    assert weights_sha256(TENSORS) == hashlib.sha256(by_hand).hexdigest()
    assert weights_sha256({"b": TENSORS["b"].T.contiguous(), "a": TENSORS["a"]}) != weights_sha256(TENSORS)


def test_a_digest_does_not_depend_on_order_or_memory_layout() -> None:
    strided = torch.stack((TENSORS["b"][0], TENSORS["b"][0]), dim=1)[:, 0][None]
    assert weights_sha256({"a": TENSORS["a"], "b": strided}) == weights_sha256(TENSORS)


def test_a_file_is_named_by_its_content_and_comes_back(tmp_path: Path) -> None:
    file = write_weights(tmp_path / "weights of a run", TENSORS)
    content = path_of(file).read_bytes()
    assert path_of(file).name == hashlib.sha256(content).hexdigest() + ".safetensors" == file.sha256 + ".safetensors"
    assert file.bytes == len(content)
    fetched = fetch(announced([file]))
    assert fetched.keys() == TENSORS.keys()
    assert all(torch.equal(fetched[name], TENSORS[name]) for name in TENSORS)


def test_writing_twice_leaves_one_file_and_no_temporary_one(tmp_path: Path) -> None:
    assert write_weights(tmp_path, TENSORS) == write_weights(tmp_path, dict(sorted(TENSORS.items())))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_file_appears_only_when_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        write_weights(tmp_path, TENSORS)
    assert list(tmp_path.iterdir()) == []


def test_shards_are_joined(tmp_path: Path) -> None:
    files = [write_weights(tmp_path, {name: TENSORS[name]}) for name in TENSORS]
    assert fetch(announced(files)).keys() == TENSORS.keys()


def test_missing_truncated_and_altered_files_are_named(tmp_path: Path) -> None:
    file = write_weights(tmp_path, TENSORS)
    content = path_of(file).read_bytes()
    for altered, said in ((content[:-1], "bytes"), (content[:-1] + b"\x01", "digest")):
        path_of(file).write_bytes(altered)
        with pytest.raises(EngineError, match=said):
            fetch(announced([file]))
    path_of(file).unlink()
    with pytest.raises(EngineError, match="cannot be read"):
        fetch(announced([file]))


def test_a_complete_file_of_other_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="weights of version 3 have digest"):
        fetch(announced([write_weights(tmp_path, TENSORS)], digest="0" * 64))


def test_bytes_that_are_no_safetensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "noise"
    path.write_bytes(b"noise")
    file = WeightFile(uri=path.as_uri(), sha256=hashlib.sha256(b"noise").hexdigest(), bytes=5)
    with pytest.raises(EngineError, match="no safetensors"):
        fetch(announced([file]))


def test_weights_that_do_not_fit_are_named() -> None:
    network = torch.nn.Linear(2, 2)
    with pytest.raises(EngineError, match="1 tensors: weight"):
        require_fit({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, network)
    with pytest.raises(EngineError, match="bias"):
        require_fit({"weight": torch.zeros(2, 2)}, network)
    require_fit(network.state_dict(), network)
