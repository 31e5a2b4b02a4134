"""From a trajectory's token tree to the sequences that are trained: root-to-leaf paths, every trainable token in exactly one of them.

Invariants:
- each trainable token (mask 1, not greedy, of version `oldest` or newer, not the first of its sequence) lies in exactly one train
  range of one path: the first path that contains it. Elsewhere it is context;
- there are as few paths as that allows: a node gets one of its own only where no longer path covers its last trainable token;
- a path holds exactly the tokens that preceded its last trained token when that one was sampled, and ends with it.

No torch: whoever plans a batch needs none. Masks are scanned as bytes: numpy costs more than all the rest on sequences of a few
dozen tokens, and every session passes here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from schemas.arrays import WIDTH_BYTES, unpack_i4
from schemas.training import Row
from schemas.trajectory import Node, Trajectory

__all__ = ["Path", "paths_of"]

_TRAINED = b"\1"
_FLAGS = bytes(value == 1 for value in range(256))
"""Every byte of a mask but 1 means: not trained."""


@dataclass(frozen=True, slots=True)
class Path:
    """One sequence. The first four fields are those of `schemas.training.Row`; `length` and `trained` count tokens.

    `lowest_version` is the lowest version among the trained tokens: what staleness is measured by (R11).
    """

    nodes: list[int]
    stops: list[int]
    train_from: list[int]
    train_to: list[int]
    length: int
    trained: int
    lowest_version: int

    def row(self, place: int, advantage: float) -> Row:
        """This path as a row of a plan whose `places[place]` is the trajectory."""
        return Row(
            place=place, nodes=self.nodes, stops=self.stops, train_from=self.train_from, train_to=self.train_to, advantage=advantage
        )


def paths_of(trajectory: Trajectory, *, oldest: int = 0) -> list[Path]:
    """Every trainable token of a trajectory, once. Empty where nothing can be trained.

    :param oldest: tokens of lower versions are context only.
    :raises ValueError: a node begins beyond the end of its parent, or its parent does not precede it.
    """
    nodes = trajectory.nodes
    _require_tree(nodes)
    masks = [_trainable(node, oldest) for node in nodes]
    done = [0] * len(nodes)
    return [_path(nodes, masks, done, leaf) for leaf in _leaves(nodes, masks)]


def _trainable(node: Node, oldest: int) -> bytes:
    """One byte per token, 1 or 0. A greedy token was not drawn from a distribution, so no ratio of probabilities exists for it (R11)."""
    if node.sampling.temperature == 0.0:
        return bytes(len(node.mask))
    flags = node.mask.translate(_FLAGS)
    if oldest > 0:
        flags = bytes(flag and version >= oldest for flag, version in zip(flags, unpack_i4(node.versions), strict=True))
    return flags if _start(node) else b"\0" + flags[1:] if flags else flags


def _leaves(nodes: list[Node], masks: list[bytes]) -> list[int]:
    """Nodes that end a path. Children come after parents, so going backwards meets every longer path first."""
    covered = [0] * len(nodes)
    leaves: list[int] = []
    for index in reversed(range(len(nodes))):
        stop = _last(masks[index])
        if stop <= covered[index]:
            continue
        leaves.append(index)
        for node, count in _segments(nodes, index, stop):
            covered[node] = max(covered[node], count)
    return leaves[::-1]


def _path(nodes: list[Node], masks: list[bytes], done: list[int], leaf: int) -> Path:
    """The path to `leaf`. `done[node]` counts the leading tokens of a node that earlier paths trained; it grows here."""
    segments = _segments(nodes, leaf, _last(masks[leaf]))
    ranges: list[tuple[int, int]] = []
    versions: list[int] = []
    for node, stop in segments:
        start = _start(nodes[node])
        for begin, end in _runs(masks[node], done[node], stop):
            ranges.append((start + begin, start + end))
            versions += unpack_i4(nodes[node].versions[WIDTH_BYTES * begin : WIDTH_BYTES * end])
        done[node] = max(done[node], stop)
    return Path(
        nodes=[node for node, _ in segments],
        stops=[stop for _, stop in segments],
        train_from=[begin for begin, _ in ranges],
        train_to=[end for _, end in ranges],
        length=sum(stop for _, stop in segments),
        trained=len(versions),
        lowest_version=min(versions),
    )


def _segments(nodes: list[Node], leaf: int, stop: int) -> list[tuple[int, int]]:
    """(node, count) from the root to the first `stop` tokens of `leaf`. A branch may begin before its parent's own: none are taken."""
    end = _start(nodes[leaf]) + stop
    found: list[tuple[int, int]] = []
    index = leaf
    while index >= 0 and end > 0:
        start = _start(nodes[index])
        if end > start:
            found.append((index, end - start))
            end = start
        index = nodes[index].parent
    return found[::-1]


def _require_tree(nodes: list[Node]) -> None:
    ends: list[int] = []
    for index, node in enumerate(nodes):
        if not -1 <= node.parent < index:
            raise ValueError(f"node {index} has the parent {node.parent}, which does not precede it")
        if node.parent >= 0 and node.parent_length > ends[node.parent]:
            raise ValueError(f"node {index} begins at {node.parent_length}, its parent ends at {ends[node.parent]}")
        ends.append(_start(node) + len(node.mask))


def _start(node: Node) -> int:
    return node.parent_length if node.parent >= 0 else 0


def _last(mask: bytes) -> int:
    """One more than the index of the last trained token; 0 where there is none."""
    return mask.rfind(_TRAINED) + 1


def _runs(mask: bytes, begin: int, stop: int) -> Iterator[tuple[int, int]]:
    """The ranges of trained tokens in `mask[begin:stop]`."""
    first = mask.find(_TRAINED, begin, stop)
    while first >= 0:
        end = mask.find(b"\0", first, stop)
        yield first, end if end >= 0 else stop
        first = mask.find(_TRAINED, end, stop) if end >= 0 else -1
