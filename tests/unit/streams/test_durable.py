"""A file under its name is whole; what was cut short leaves what stood there before."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streams.durable import write_whole


def test_content_and_name_are_flushed_in_the_order_that_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flushed = tmp_path / "a folder" / "file", []
    flush = os.fsync

    def noted(handle: int) -> None:
        is_folder = os.path.isdir(f"/proc/self/fd/{handle}")
        flushed.append(("folder" if is_folder else "file", path.exists()))
        flush(handle)

    monkeypatch.setattr(os, "fsync", noted)
    write_whole(path, b"content")
    assert path.read_bytes() == b"content"
    assert flushed == [("file", False), ("folder", True)]


def test_a_full_disk_leaves_the_old_content_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    write_whole(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]
