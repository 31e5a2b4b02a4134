"""Staleness: the version that a step starts from minus the lowest version among the tokens that it trains (R11).

Invariants: what is trained is within the bound; staleness is never negative: weights that the trainer has not made cannot have sampled.
"""

from __future__ import annotations

from typing import Literal

from schemas.arrays import unpack_i4
from schemas.errors import LogError
from schemas.trajectory import Trajectory
from trainer.feed.join import Item
from trainer.paths import Path, paths_of

__all__ = ["Stale", "fresh_paths", "require_made"]

Stale = Literal["mask", "drop"]
"""What happens to tokens beyond the bound: they alone become context (`mask`), or their whole session is dropped."""


def fresh_paths(item: Item, version: int, bound: int, stale: Stale) -> list[Path]:
    """What a step from `version` may train of a session; nothing where it is too old.

    :raises LogError: a token names a version above `version`.
    """
    require_made(item.trajectory, version)
    oldest = version - bound
    if all(path.lowest_version >= oldest for path in item.paths):
        return item.paths
    return paths_of(item.trajectory, oldest=oldest) if stale == "mask" else []


def require_made(trajectory: Trajectory, version: int) -> None:
    """Refuse negative staleness.

    :raises LogError: a token names a version above `version`.
    """
    newest = max((max(unpack_i4(node.versions), default=-1) for node in trajectory.nodes), default=-1)
    if newest > version:
        raise LogError(f"session {trajectory.session} holds tokens of version {newest}, the trainer stands at version {version}")
