"""Which tokens a batch plan trains, worked out token by token.

Sequence of a row: node `nodes[i]` contributes its first `stops[i]` tokens; position p of the sequence is trained where it lies in one of
the ranges [train_from[k], train_to[k]). What must hold of a row: its nodes are a path (each an ancestor of the next) in which every node
stands at its `parent_length`; every trained position lies inside, is not the first, and has mask 1; no position is in two ranges. Every
row is in exactly one micro-batch, every micro-batch in exactly one mini-batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from infra.audit.entry import Fields, integers
from infra.audit.trajectories import Kept


class Trained(NamedTuple):
    """One trained token: `token` counts within node `node`; `version` sampled it."""

    node: int
    token: int
    version: int


class BadRow(ValueError):
    """A row that no planner may write; the text says why. Becomes a violation of R6."""


def trained_tokens(row: Fields, trajectory: Kept) -> list[Trained]:
    """The trained tokens of a row, in sequence order.

    :raises BadRow: see the module.
    """
    _require_path(row, trajectory)
    places = [(node, token) for node, stop in zip(row["nodes"], row["stops"], strict=True) for token in range(stop)]
    versions = {node: integers(trajectory.nodes[node].versions) for node in set(row["nodes"])}
    trained = []
    for position in _positions(row, len(places)):
        node, token = places[position]
        if trajectory.nodes[node].mask[token] != 1:
            raise BadRow(f"trains token {token} of node {node}, whose mask is 0")
        trained.append(Trained(node, token, versions[node][token]))
    return trained


def layout_objection(plan: Fields) -> str | None:
    """Why the micro-batches and mini-batches do not hold each row once; None where they do."""
    for name, lists, expected in (
        ("row", plan["micro_batches"], len(plan["rows"])), ("micro-batch", plan["mini_batches"], len(plan["micro_batches"])),
    ):
        counts = Counter(index for each in lists for index in each)
        odd = [index for index in {*counts, *range(expected)} if counts[index] != 1 or index >= expected]
        if odd:
            return f"{name} {odd[0]} of {expected} is taken {counts[odd[0]]} times"
    return None


def _positions(row: Fields, length: int) -> Iterator[int]:
    if len(row["train_from"]) != len(row["train_to"]):
        raise BadRow("train_from and train_to differ in length")
    last = 0
    for first, end in sorted(zip(row["train_from"], row["train_to"], strict=True)):
        if first < max(last, 1) or end > length or end < first:
            raise BadRow(f"trains positions {first} to {end} of {length}, after {last}")
        last = max(last, end)
        yield from range(first, end)


def _require_path(row: Fields, trajectory: Kept) -> None:
    nodes, stops = row["nodes"], row["stops"]
    if len(nodes) != len(stops) or not nodes:
        raise BadRow(f"{len(nodes)} nodes with {len(stops)} stops")
    if any(not 0 <= node < len(trajectory.nodes) for node in nodes):
        raise BadRow(f"nodes {nodes} of {len(trajectory.nodes)}")
    at = 0
    for index, (node, stop) in enumerate(zip(nodes, stops, strict=True)):
        read = trajectory.nodes[node]
        if not 0 <= stop <= len(read.mask) or (stop and at != read.parent_length):
            raise BadRow(f"node {node} gives {stop} of its {len(read.mask)} tokens at {at}, it begins at {read.parent_length}")
        if index and nodes[index - 1] not in _ancestors(node, trajectory):
            raise BadRow(f"node {nodes[index - 1]} is no ancestor of node {node}")
        at += stop


def _ancestors(node: int, trajectory: Kept) -> Sequence[int]:
    found: list[int] = []
    while (node := trajectory.nodes[node].parent) >= 0 and node not in found:
        found.append(node)
    return found
