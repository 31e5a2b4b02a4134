"""Files that a crash of the machine leaves whole or absent: written under a temporary name, flushed to disk, renamed, their folder flushed.

Invariant: a file under its final name is whole. An interrupted writer leaves at most a `<name>.<random>.part`. Blocking.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

__all__ = ["flush", "write_whole"]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file; its folder is made if missing. It is complete and durable when this returns.

    :raises OSError: nothing stands under its name then, but what stood there before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f"{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        flush(Path(temporary))
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    flush(path.parent)


def flush(path: Path) -> None:
    """Make a file's content, or the names in a folder, durable: without it a crash of the machine may forget a rename."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
