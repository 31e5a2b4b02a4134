"""The files of the blob store, in a local folder and in an object store (fsspec's in memory)."""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path
from typing import NoReturn

import fsspec
import pytest

from schemas.errors import MissingBlob, UsageError
from streams.blobstore import BlobStore, Reference, name_of, read_blob

NOON_S = 1_796_126_400.0
"""2026-12-01 12:00:00 UTC."""
CONTENT = b"a payload" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(params=["local", "memory"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "a folder" / "blobs") if request.param == "local" else f"memory://{secrets.token_hex(4)}/blobs"


def overwrite(uri: str, content: bytes) -> None:
    files, path = fsspec.core.url_to_fs(uri)
    files.pipe_file(path, content)


def test_a_blob_is_named_by_its_hour_and_its_content(root: str) -> None:
    reference = BlobStore(root).write(CONTENT, NOON_S + 59 * 60)
    assert (reference.sha256, reference.bytes) == (SHA256, 9000)
    assert reference.uri.endswith(f"/blobs/20261201T12/{SHA256}")
    assert name_of(reference.uri) == f"20261201T12/{SHA256}"
    assert read_blob(reference) == CONTENT


def test_written_again_it_is_one_file_an_hour(root: str) -> None:
    store = BlobStore(root)
    first = store.write(CONTENT, NOON_S)
    assert store.write(CONTENT, NOON_S + 3599) == first
    store.write(CONTENT, NOON_S + 3600)
    found = [(stored.name, stored.bytes, stored.written_before_s) for stored in store.find()]
    assert found == [(f"20261201T12/{SHA256}", 9000, NOON_S + 3600), (f"20261201T13/{SHA256}", 9000, NOON_S + 7200)]


def test_an_empty_store_holds_nothing(root: str) -> None:
    assert BlobStore(root).find() == []


def test_only_files_of_an_hour_are_the_stores_own(root: str) -> None:
    store = BlobStore(root)
    reference = store.write(CONTENT, NOON_S)
    folder = reference.uri.removesuffix(f"/20261201T12/{SHA256}")
    overwrite(f"{folder}/readme", b"mine")
    overwrite(f"{folder}/20261201T12/{SHA256}.x.part", b"cut short")
    assert [stored.name for stored in store.find()] == [f"20261201T12/{SHA256}", f"20261201T12/{SHA256}.x.part"]


def test_what_is_removed_is_missing_and_removing_it_again_is_no_error(root: str) -> None:
    store = BlobStore(root)
    reference = store.write(CONTENT, NOON_S)
    (stored,) = store.find()
    store.remove(stored)
    store.remove(stored)
    assert store.find() == []
    with pytest.raises(MissingBlob, match="does not exist"):
        read_blob(reference)


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"!", b""], ids=["short", "changed", "empty"])
def test_a_damaged_blob_is_told_from_its_record(root: str, content: bytes) -> None:
    reference = BlobStore(root).write(CONTENT, NOON_S)
    overwrite(reference.uri, content)
    with pytest.raises(MissingBlob, match=f"is damaged: its {len(content)} bytes are not the 9000 of sha256 {SHA256}"):
        read_blob(reference)


def test_a_reference_to_a_store_that_cannot_be_read_here_is_missing() -> None:
    with pytest.raises(MissingBlob, match="cannot be read here"):
        read_blob(Reference(uri="nowhere://bucket/20261201T12/aa", sha256="aa", bytes=1))


def test_a_store_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="nowhere://bucket"):
        BlobStore("nowhere://bucket")


def test_a_write_that_is_cut_short_leaves_nothing_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    store = BlobStore(str(tmp_path))
    with pytest.raises(OSError, match="No space left"):
        store.write(CONTENT, NOON_S)
    assert store.find() == []


def test_a_folder_whose_last_blob_went_goes_too(tmp_path: Path) -> None:
    store = BlobStore(str(tmp_path))
    store.write(CONTENT, NOON_S)
    store.write(b"another", NOON_S)
    for left, stored in zip([["20261201T12"], []], store.find(), strict=True):
        store.remove(stored)
        assert [path.name for path in tmp_path.iterdir()] == left
