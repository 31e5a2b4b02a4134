"""The user's cache folder, and how something whole is put into it.

Invariant: a folder under its final name is complete. It is filled under a temporary name and renamed, so that an interrupted download
leaves a temporary folder and nothing else; when two processes fill the same name, the first one wins and both use it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_dir() -> Path:
    """`$XDG_CACHE_HOME/seamlessflow`, else `~/.cache/seamlessflow`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "seamlessflow"


def filled(target: Path, fill: Callable[[Path], None]) -> Path:
    """The folder `target`; where it does not exist, `fill` is given an empty folder that takes its name once it returns.

    :raises OSError: the cache cannot be written.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f"{target.name}.partial-", dir=target.parent))
    try:
        fill(partial)
        partial.chmod(0o755)
        _take_name(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _take_name(partial: Path, target: Path) -> None:
    try:
        partial.rename(target)
    except OSError:
        if not target.is_dir():
            raise
