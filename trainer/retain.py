"""Which published weights keep their files. Pure.

Files of the newest versions stay, because a worker may be about to load one; those of version 0, because every recomputation may begin
there; those of versions that a kept checkpoint belongs to. The rest can be made again from the log (R7).

Invariants:
- what may be gone was said in the log before (`WeightVersion.files_from`), and that number never falls;
- a file is removed only if no version that stays has the same content.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from schemas.training import WeightFile

__all__ = ["files_from", "gone", "removable"]


def files_from(version: int, before: int, keep: int) -> int:
    """What the announcement of `version` says of older files.

    :param before: what the announcement before it said.
    :param keep: so many newest versions keep their files; 0: all do.
    """
    return max(before, version - keep + 1) if keep else before


def gone(versions: Iterable[int], below: int, kept: Collection[int]) -> list[int]:
    """The versions that lose their files where those of 1 … `below` − 1 may go; `kept` belong to checkpoints."""
    return sorted(version for version in versions if 0 < version < below and version not in kept)


def removable(files: Mapping[int, Sequence[WeightFile]], versions: Collection[int]) -> set[str]:
    """Digests of the files that only `versions` have, among all `files` by version."""
    needed = {file.sha256 for version, each in files.items() if version not in versions for file in each}
    return {file.sha256 for version in versions for file in files[version]} - needed
