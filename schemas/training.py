"""Run, Step, Drops, WeightVersion: what the trainer decided and made. One partition, one order, written by cas only.

A Step is enough to make its weights again from the weights before (R7) and to start a trainer where this one stood (R6).
"""

from __future__ import annotations

from typing import Any

import msgspec

from schemas.record import Record


class _Part(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    pass


class WeightFile(_Part, frozen=True, kw_only=True):
    """One file of a version: fsspec `uri`, `sha256` (hex) of its content, size. Complete before anyone hears of it (R8)."""

    uri: str
    sha256: str
    bytes: int


class WeightVersion(Record, frozen=True, kw_only=True):
    """Weights `version` may be loaded. Never reused, monotone; 0 is the initial model.

    `step` is the Step that made it (None for 0). `weights_sha256` digests the tensors (names, dtypes, shapes, bytes), whatever the files.

    Where a trainer came back and its numerics gave other weights than the log's, it says so by a version of its own, which is in force from
    then on: made by training the Steps after `again_from` once more, to `optimizer_sha256`, under `numerics`. Other versions leave these
    three empty: their Step has them.

    Files of versions 1 … `files_from` − 1 may be gone: this is said before the first of them is removed.
    """

    version: int
    step: int | None = None
    files: list[WeightFile]
    weights_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    config: dict[str, Any] = {}
    again_from: int | None = None
    optimizer_sha256: str = ""
    numerics: dict[str, str] = {}
    files_from: int = 0

    def key(self) -> bytes:
        """The type."""
        return self.type_name().encode()


class Run(Record, frozen=True, kw_only=True):
    """A trainer begins a run: its settings, as they stand in force. Followed by WeightVersion 0 in the same transaction."""

    run: str
    settings: dict[str, Any] = {}
    started_ms: int = 0

    def key(self) -> bytes:
        """The type."""
        return self.type_name().encode()


class Place(_Part, frozen=True, kw_only=True):
    """A trajectory: partition and offset in `trajectories`, and its session (offset in the same partition of `sessions`)."""

    partition: int
    offset: int
    session: int


class Row(_Part, frozen=True, kw_only=True):
    """One packed sequence of a batch plan: a path of nodes in one trajectory, root first.

    `place` indexes the plan's `places`. Node `nodes[i]` contributes its tokens up to `stops[i]` (count within the node). Only tokens at
    sequence index ≥ `train_from[k] … < train_to[k]` are trained in this row: a shared sampled token is trained once, in its first row.
    """

    place: int
    nodes: list[int]
    stops: list[int]
    train_from: list[int]
    train_to: list[int]
    advantage: float


class Plan(_Part, frozen=True, kw_only=True):
    """The exact batch: which rows, in which order, cut into which micro-batches, how often.

    `micro_batches` lists row indexes; `mini_batches` lists micro-batch indexes, one optimizer update each, in order, repeated
    `epochs` times. Nothing else chooses an order (R7).
    """

    places: list[Place]
    rows: list[Row]
    micro_batches: list[list[int]]
    mini_batches: list[list[int]]
    epochs: int = 1
    seed: int = 0


class Dropped(_Part, frozen=True, kw_only=True):
    """Training sessions that will never be trained, with the reason (`failed`, `empty`, `group decided`, `no signal`, `too old`, …)."""

    place: Place
    reason: str
    group: int | None = None


class Watermark(_Part, frozen=True, kw_only=True):
    """How far one partition is decided.

    All trajectories below `trajectory` are decided, and `close` is the greatest Close among those below it; `decided` are the decided
    offsets above. `score` is the lowest offset in `scores` that still matters: of an undecided trajectory.
    """

    partition: int
    trajectory: int = 0
    close: int = -1
    decided: list[int] = []
    score: int = 0


class Consumed(_Part, frozen=True, kw_only=True):
    """All that a restarted trainer needs to know of what was read: stands in every Step and Drops record.

    `groups_below`: groups with smaller numbers are decided; `groups` are decided ones at or above. `tasks` is the next offset to read in
    each partition of `tasks`.
    """

    watermarks: list[Watermark] = []
    groups_below: int = 0
    groups: list[int] = []
    tasks: dict[int, int] = {}


class Step(Record, frozen=True, kw_only=True):
    """One batch and the optimizer updates made from it. `step` counts from 1; the weights after it are `weights_sha256`.

    `version` is the version that the step started from. `trained_tokens` counts mask-1 tokens, once each; `staleness` is the greatest over
    them of (`version` − its version). `groups_dropped` are groups that end here without being trained, also those of which nothing
    came. `numerics` is the numerics key (R7). `metrics` are for people.
    """

    step: int
    version: int
    published: int | None = None
    plan: Plan
    drops: list[Dropped] = []
    consumed: Consumed
    groups_trained: list[int] = []
    groups_dropped: list[int] = []
    trained_tokens: int = 0
    staleness: int = 0
    weights_sha256: str
    optimizer_sha256: str = ""
    numerics: dict[str, str] = {}
    metrics: dict[str, float] = {}

    def key(self) -> bytes:
        """The type."""
        return self.type_name().encode()


class Drops(Record, frozen=True, kw_only=True):
    """Decisions that no Step follows within the deadline. `groups` are those of which nothing came, or too little."""

    drops: list[Dropped] = []
    groups: list[int] = []
    consumed: Consumed

    def key(self) -> bytes:
        """The type."""
        return self.type_name().encode()
