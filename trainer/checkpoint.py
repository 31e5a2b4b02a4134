"""Checkpoints: a learner's whole state on disk, to be found again by what the log says of it (R7).

A checkpoint is a folder `step-<step>-<first 16 digits of the weights digest>` of `weights.safetensors`, `optimizer.safetensors` and
`state.json`; no pickle. Invariants:
- a folder under its final name is whole: written under a temporary name, every file flushed, renamed, and the parent flushed;
- a checkpoint counts only if a committed Step (or version 0) has its step and weights digest: one that was written before a commit that
  never came is never loaded;
- `load` checks both digests, so that a damaged file is an error and never a wrong weight.

Two trainers may write to a folder for a while: a second one recovers before cas tells which of them goes on. They leave each other's work
alone: what is being written has a name of its own, and is removed only after nothing was written to it for ABANDONED_S.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from models.weights import weights_sha256
from schemas.errors import UsageError
from streams.durable import flush
from trainer.learner import Learner

__all__ = ["ABANDONED_S", "Checkpoint", "State", "kept", "load", "newest", "prune", "save"]

_WEIGHTS, _OPTIMIZER, _STATE = "weights.safetensors", "optimizer.safetensors", "state.json"
_TEMPORARY = ".unfinished-"

ABANDONED_S = 3600.0
"""Far longer than one file of a checkpoint takes to be written: who began it is dead."""


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The scalars. `version` is the newest version published up to this step, `updates` the learner's count."""

    step: int
    version: int
    updates: int
    weights_sha256: str
    optimizer_sha256: str
    numerics: dict[str, str]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A whole one on disk."""

    path: Path
    state: State


def save(folder: Path, learner: Learner, *, step: int, version: int, numerics: Mapping[str, str]) -> Checkpoint:
    """Write the learner's state after `step` (0: before the first); `folder` is made if missing. Complete when this returns.

    The same state saved again is left as it stands.
    """
    weights, moments = learner.digests()
    state = State(
        step=step,
        version=version,
        updates=learner.optimizer.updates,
        weights_sha256=weights,
        optimizer_sha256=moments,
        numerics=dict(numerics),
    )
    path = folder / f"step-{step:08d}-{weights[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        temporary = Path(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder))
        _write(temporary / _WEIGHTS, learner.weights())
        _write(temporary / _OPTIMIZER, learner.optimizer.moments())
        (temporary / _STATE).write_bytes(msgspec.json.format(msgspec.json.encode(state)))
        for written in (temporary / _WEIGHTS, temporary / _OPTIMIZER, temporary / _STATE, temporary):
            flush(written)
        _give_name(temporary, path)
        flush(folder)
    return Checkpoint(path, state)


def kept(folder: Path, committed: Mapping[int, str]) -> list[Checkpoint]:
    """The checkpoints of committed steps, oldest first.

    :param committed: step -> weights digest of the Steps in the log; 0 -> that of version 0.
    """
    return sorted((each for each in _all(folder) if _is_committed(each, committed)), key=lambda each: each.state.step)


def newest(folder: Path, committed: Mapping[int, str]) -> Checkpoint | None:
    """The checkpoint of the highest committed step, or None; `committed` as for `kept`."""
    found = kept(folder, committed)
    return found[-1] if found else None


def load(checkpoint: Checkpoint, learner: Learner) -> None:
    """Bring `learner` into the saved state.

    :raises UsageError: a file is missing or damaged, or belongs to another model.
    """
    state = checkpoint.state
    weights = _read(checkpoint.path / _WEIGHTS, state.weights_sha256)
    moments = _read(checkpoint.path / _OPTIMIZER, state.optimizer_sha256)
    try:
        learner.restore(weights, moments, state.updates)
    except (RuntimeError, KeyError) as error:
        raise UsageError(f"checkpoint {checkpoint.path} is of another model: {error}") from error


def prune(folder: Path, committed: Mapping[int, str], *, keep: int) -> list[Path]:
    """Remove all but the `keep` newest committed checkpoints, and what was abandoned unfinished; returns the checkpoints removed.

    A checkpoint beyond the newest committed step stays: its Step may be about to be committed.
    """
    ours = kept(folder, committed)
    stay = {each.path for each in ours[max(0, len(ours) - keep) :]}
    highest = max(committed, default=-1)
    old = [each.path for each in _all(folder) if each.state.step <= highest and each.path not in stay]
    for path in old:
        # Renamed first: a removal that is cut short must not leave a folder that looks whole.
        with suppress(FileNotFoundError):  # another trainer removed it
            shutil.rmtree(path.rename(tempfile.mkdtemp(prefix=_TEMPORARY, dir=folder)))
    for path in folder.glob(f"{_TEMPORARY}*"):
        with suppress(FileNotFoundError):  # it was finished or removed meanwhile
            if _is_abandoned(path):
                shutil.rmtree(path)
    return old


def _give_name(temporary: Path, path: Path) -> None:
    """Rename a whole checkpoint, unless another trainer did so with the same state before."""
    try:
        temporary.rename(path)
    except OSError:
        if not path.exists():
            raise
        shutil.rmtree(temporary)


def _is_abandoned(unfinished: Path) -> bool:
    written_s = max(path.stat().st_mtime for path in (unfinished, *unfinished.iterdir()))
    return time.time() - written_s > ABANDONED_S


def _all(folder: Path) -> list[Checkpoint]:
    """Checkpoints whose `state.json` can be read; a folder that a person damaged is passed over, an older one will do."""
    found: list[Checkpoint] = []
    for path in sorted(folder.glob("step-*")):
        try:
            found.append(Checkpoint(path, msgspec.json.decode((path / _STATE).read_bytes(), type=State)))
        except (OSError, msgspec.MsgspecError):
            continue
    return found


def _is_committed(checkpoint: Checkpoint, committed: Mapping[int, str]) -> bool:
    return committed.get(checkpoint.state.step) == checkpoint.state.weights_sha256


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata={"format": "pt"})


def _read(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(f"{path} is damaged ({error}): remove its folder, and an older checkpoint will be used") from error
    if weights_sha256(tensors) != sha256:
        raise UsageError(f"{path} is damaged (its digest is not the recorded one): remove its folder, and an older checkpoint will be used")
    return tensors
