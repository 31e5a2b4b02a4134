"""Weights as files: named tensors <-> safetensors, named by the digest of their content (R8).

Invariants:
- a file under its final name is whole (`streams.durable`);
- equal tensors give equal bytes, hence the same name: writing them again is harmless;
- `fetch` returns only tensors whose file sizes, file digests and tensor digest are those that the log announced.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import fsspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from schemas.errors import EngineError
from schemas.training import WeightFile, WeightVersion
from streams.durable import write_whole

__all__ = ["fetch", "remove_weights", "require_fit", "weights_sha256", "write_weights"]

Tensors = Mapping[str, torch.Tensor]


def weights_sha256(tensors: Tensors) -> str:
    """Hex digest of named tensors: for each, in the order of names, `name dtype shape`, a newline and its bytes."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        shape = "x".join(str(size) for size in tensor.shape)
        digest.update(f"{name} {str(tensor.dtype).removeprefix('torch.')} {shape}\n".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write_weights(folder: Path, tensors: Tensors) -> WeightFile:
    """Write `<sha256>.safetensors` into `folder` (made if missing) and return its record; it is complete when this returns."""
    content = save({name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}, metadata={"format": "pt"})
    sha256 = hashlib.sha256(content).hexdigest()
    path = _file(folder, sha256)
    write_whole(path, content)
    # fsspec takes the path as it stands: percent-encoding, as Path.as_uri() does, would name another file.
    return WeightFile(uri=f"file://{path}", sha256=sha256, bytes=len(content))


def remove_weights(folder: Path, digests: Iterable[str]) -> None:
    """Remove files that `write_weights` wrote into `folder`, by the digest of their content; some may be gone before."""
    for sha256 in digests:
        _file(folder, sha256).unlink(missing_ok=True)


def fetch(version: WeightVersion) -> dict[str, torch.Tensor]:
    """The tensors of a version, read from its files by fsspec, verified.

    :raises EngineError: a file is missing, or its size, its digest or the tensors' digest is not what the log says.
    """
    tensors: dict[str, torch.Tensor] = {}
    for file in version.files:
        tensors |= _read_verified(version.version, file)
    found = weights_sha256(tensors)
    if found != version.weights_sha256:
        raise EngineError(f"weights of version {version.version} have digest {found}, the log says {version.weights_sha256}")
    return tensors


def require_fit(tensors: Tensors, network: torch.nn.Module) -> None:
    """Names, shapes and dtypes are those of the network's own state.

    :raises EngineError: names the first tensors that are missing, unexpected, or of another shape or dtype.
    """
    expected = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in network.state_dict().items()}
    given = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    if differing := sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name)):
        raise EngineError(f"weights do not fit the model in {len(differing)} tensors: {', '.join(differing[:3])}")


def _file(folder: Path, sha256: str) -> Path:
    return folder.resolve() / f"{sha256}.safetensors"


def _read_verified(version: int, file: WeightFile) -> dict[str, torch.Tensor]:
    said = f"{file.uri} of version {version}"
    try:
        with fsspec.open(file.uri, "rb") as opened:
            content: bytes = opened.read()
    except (OSError, ValueError, ImportError) as error:
        raise EngineError(f"{said} cannot be read: {error}") from error
    if len(content) != file.bytes:
        raise EngineError(f"{said} has {len(content)} bytes, the log says {file.bytes}")
    if (found := hashlib.sha256(content).hexdigest()) != file.sha256:
        raise EngineError(f"{said} has digest {found}, the log says {file.sha256}")
    try:
        return dict(load(content))
    except SafetensorError as error:
        raise EngineError(f"{said} is no safetensors file: {error}") from error
