"""The blob store's files: payloads that are too large for a message, named by the hour of their writing and by their content.

    ROOT/20261201T13/<sha256>

Invariants:
- a file under its final name is whole: a local one by `streams.durable`, object stores show an object once it is complete;
- a file is written under its name within that hour alone (by the writer's clock). So a name that is older than any writer's hesitation
  between blob and record is never written again, and whoever removes it takes nothing from a record that is still to come;
- `read` returns only bytes that have the recorded length and digest.

Blocking: `streams.blobs` calls it in threads.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
import msgspec
from fsspec.implementations.local import LocalFileSystem

from schemas.errors import MissingBlob, UsageError
from streams.durable import write_whole

__all__ = ["BlobStore", "Reference", "Stored", "name_of", "read_blob"]

HOUR_S = 3600
HOUR_FORMAT = "%Y%m%dT%H"
_HOUR = re.compile(r"\d{8}T\d\d")


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a record holds in place of its payload: where it is, its digest (hex) and its length."""

    uri: str
    sha256: str
    bytes: int


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the store. `name` is HOUR/SHA256; `written_before_s` is the end of that hour, seconds since 1970."""

    name: str
    bytes: int
    written_before_s: float


class BlobStore:
    """The files below `root`: a folder, or a URL that fsspec understands, such as `s3://bucket/prefix`."""

    def __init__(self, root: str) -> None:
        try:
            self._files, self._path = fsspec.core.url_to_fs(root)
        except (ImportError, ValueError) as error:
            raise UsageError(f"blobs = {root!r}: {error}") from error
        self._root = f"file://{self._path}" if isinstance(self._files, LocalFileSystem) else root.rstrip("/")

    def write(self, content: bytes, now_s: float) -> Reference:
        """Store a payload; it is whole when this returns. Writing it again within the hour changes nothing.

        :raises Exception: whatever the store's own client raises.
        """
        sha256 = hashlib.sha256(content).hexdigest()
        name = f"{datetime.fromtimestamp(now_s, UTC):{HOUR_FORMAT}}/{sha256}"
        self._write_whole(f"{self._path}/{name}", content)
        return Reference(uri=f"{self._root}/{name}", sha256=sha256, bytes=len(content))

    def find(self) -> list[Stored]:
        """All files that stand in a folder named as an hour, the leavings of interrupted writers included."""
        found: dict[str, Any] = self._files.find(self._path, detail=True)
        return [stored for path, said in sorted(found.items()) for stored in self._stored(path, said["size"])]

    def _stored(self, path: str, size_bytes: int) -> Iterator[Stored]:
        hour, _, name = path.removeprefix(self._path).lstrip("/").partition("/")
        if _HOUR.fullmatch(hour) and name:
            began = datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)
            yield Stored(name=f"{hour}/{name}", bytes=size_bytes, written_before_s=began.timestamp() + HOUR_S)

    def remove(self, blob: Stored) -> None:
        """Remove a file, and its folder where it was the last. One that is gone already is no error."""
        path = f"{self._path}/{blob.name}"
        with suppress(FileNotFoundError):
            self._files.rm_file(path)
        with suppress(OSError, NotImplementedError):  # not empty, or the store has no folders
            self._files.rmdir(path.rpartition("/")[0])

    def _write_whole(self, path: str, content: bytes) -> None:
        if isinstance(self._files, LocalFileSystem):
            write_whole(Path(path), content)
        else:
            self._files.pipe_file(path, content)


def name_of(uri: str) -> str:
    """HOUR/SHA256 of a blob. Names are compared, not uris: the same store may be reached by several."""
    return "/".join(uri.split("/")[-2:])


def read_blob(reference: Reference) -> bytes:
    """The payload that a record refers to, wherever it is.

    :raises MissingBlob: it is not there, or is not what the record says.
    :raises Exception: whatever the store's own client raises.
    """
    try:
        files, path = fsspec.core.url_to_fs(reference.uri)
        content: bytes = files.cat_file(path)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingBlob(f"{reference.uri} does not exist") from None
    except (ImportError, ValueError) as error:
        raise MissingBlob(f"{reference.uri} cannot be read here: {error}") from error
    if len(content) != reference.bytes or hashlib.sha256(content).hexdigest() != reference.sha256:
        said = f"its {len(content)} bytes are not the {reference.bytes} of sha256 {reference.sha256}"
        raise MissingBlob(f"{reference.uri} is damaged: {said}")
    return content
