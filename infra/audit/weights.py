"""R8 and digests: every announced version's files exist, whole, and hold the tensors that the log names.

Files that the log lets go of (`files_from`) may be missing; those of version 0 may not.

`weights_sha256` is recomputed from the safetensors bytes without torch: for each tensor in the order of names, the line `name dtype
shape` (dtype as `float32`, shape as `128x64`, empty for a scalar), then its bytes.

Held in memory: the files of one version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import fsspec

from infra.audit.entry import Entry, Fields
from infra.audit.findings import Findings
from infra.audit.sessions import PartitionRead

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8",
    "U8": "uint8", "BOOL": "bool",
}
"""safetensors' names of element types → those of the digest."""

HEADER_LENGTH_BYTES = 8


class TensorBytes(NamedTuple):
    """One tensor of a file; `line` is what the digest covers before its bytes."""

    name: str
    line: str
    data: memoryview


@dataclass(slots=True)
class WeightFiles:
    """Checks files of versions; `progress` is told the uri of each file before it is read. `removed` counts versions without their files,
    of which the log says that they may be gone."""

    findings: Findings
    progress: Callable[[str], None]
    removed: int = 0

    def check(self, versions: Collection[Entry]) -> None:
        """Check every version."""
        below = max((version["files_from"] for version in versions), default=0)
        for version in versions:
            if 0 < version["version"] < below and not all(_exists(file["uri"]) for file in version["files"]):
                self.removed += 1
                continue
            contents = [self._content(version, file) for file in version["files"]]
            self.findings.need(bool(contents), "R8", version, "version %d has no files", version["version"])
            if contents and None not in contents:
                self._tensors(version, [content for content in contents if content is not None])

    def _content(self, version: Entry, file: Fields) -> bytes | None:
        """The file's bytes, where they are what the version says."""
        need, uri = self.findings.need, file["uri"]
        self.progress(uri)
        content = _read(uri)
        if not need(content is not None, "R8", version, "version %d: %s does not exist", version["version"], uri):
            return None
        assert content is not None
        whole = need(len(content) == file["bytes"], "digest", version, "%s has %d bytes, the log says %d", uri, len(content), file["bytes"])
        sha256 = hashlib.sha256(content).hexdigest()
        same = need(sha256 == file["sha256"], "digest", version, "%s has sha256 %s, the log says %s", uri, sha256, file["sha256"])
        return content if whole and same else None

    def _tensors(self, version: Entry, contents: list[bytes]) -> None:
        try:
            digest = weights_digest(contents)
        except ValueError as error:
            self.findings.need(False, "digest", version, "version %d: %s", version["version"], error)
            return
        said = version["weights_sha256"]
        self.findings.need(
            digest == said, "digest", version, "version %d: its tensors have digest %s, the log says %s", version["version"], digest, said
        )


def check_span_versions(
    partitions: Mapping[int, PartitionRead], versions: Mapping[int, Entry], before_ms: int, findings: Findings
) -> None:
    """Every version that a counted span was sampled under is announced. Spans after `before_ms` may be ahead of what was read."""
    for read in partitions.values():
        for request in read.requests.values():
            for span in request.spans:
                known = span.version in versions or span.timestamp_ms > before_ms
                place = request.entry.place._replace(offset=span.offset)
                findings.need(known, "R8", place, "span of version %d, which nobody announced", span.version)


def weights_digest(contents: Iterable[bytes]) -> str:
    """The digest (hex) of the tensors of some safetensors files together.

    :raises ValueError: one is no safetensors file.
    """
    tensors = [tensor for content in contents for tensor in _tensors_of(content)]
    digest = hashlib.sha256()
    for tensor in sorted(tensors, key=lambda tensor: tensor.name):
        digest.update(f"{tensor.line}\n".encode())
        digest.update(tensor.data)
    return digest.hexdigest()


def _tensors_of(content: bytes) -> list[TensorBytes]:
    """Layout: header length (8 bytes, little-endian), header (JSON: name → dtype, shape, data_offsets), data."""
    start = HEADER_LENGTH_BYTES + int.from_bytes(content[:HEADER_LENGTH_BYTES], "little")
    data = memoryview(content)[start:]
    try:
        header = json.loads(content[HEADER_LENGTH_BYTES:start])
        return [_tensor(name, said, data) for name, said in header.items() if name != "__metadata__"]
    except (AttributeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"no safetensors file: {error!r}") from error


def _tensor(name: str, said: Fields, data: memoryview) -> TensorBytes:
    first, end = said["data_offsets"]
    shape = "x".join(str(size) for size in said["shape"])
    return TensorBytes(name, f"{name} {DTYPES[said['dtype']]} {shape}", data[first:end])


def _exists(uri: str) -> bool:
    filesystem, path = fsspec.core.url_to_fs(uri)
    return bool(filesystem.exists(path))


def _read(uri: str) -> bytes | None:
    try:
        with fsspec.open(uri, "rb") as file:
            content: bytes = file.read()
            return content
    except OSError:
        return None
