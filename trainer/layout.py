"""From rows to a Plan: their order, their micro-batches, their mini-batches. Pure, and a function of its arguments alone.

Invariants:
- each row is in exactly one micro-batch, each micro-batch in exactly one mini-batch, none is empty;
- a micro-batch has at most `micro_batch_tokens` tokens, unless a single row has more;
- within a mini-batch rows are in order of length, because attention computes neighbours of equal length together (`trainer.attention`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field

from schemas.training import Place, Plan, Row

__all__ = ["LayoutSettings", "lay_out"]


class LayoutSettings(BaseModel):
    """How a batch is cut. `mini_batches` is the number of optimizer updates per epoch, fewer where there are fewer rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    micro_batch_tokens: int = Field(default=8192, ge=1)
    mini_batches: int = Field(default=1, ge=1)
    epochs: int = Field(default=2, ge=1)


def lay_out(places: Sequence[Place], rows: Sequence[Row], settings: LayoutSettings, *, seed: int = 0) -> Plan:
    """The exact plan of a batch. With several mini-batches, `seed` decides which rows come together.

    :raises ValueError: there is no row.
    """
    if not rows:
        raise ValueError("a plan without rows")
    order = list(range(len(rows)))
    if settings.mini_batches > 1:
        random.Random(seed).shuffle(order)
    updates = min(settings.mini_batches, len(rows))
    micro_batches: list[list[int]] = []
    mini_batches: list[list[int]] = []
    for share in range(updates):
        # Stable, so that rows of equal length keep their order.
        chosen = sorted(order[share::updates], key=lambda index: _length(rows[index]))
        cut = _cut(chosen, rows, settings.micro_batch_tokens)
        mini_batches.append(list(range(len(micro_batches), len(micro_batches) + len(cut))))
        micro_batches += cut
    return Plan(
        places=list(places), rows=list(rows), micro_batches=micro_batches, mini_batches=mini_batches, epochs=settings.epochs, seed=seed
    )


def _cut(order: list[int], rows: Sequence[Row], tokens: int) -> list[list[int]]:
    cut: list[list[int]] = []
    room = 0
    for index in order:
        length = _length(rows[index])
        if not cut or length > room:
            cut.append([])
            room = tokens
        cut[-1].append(index)
        room -= length
    return cut


def _length(row: Row) -> int:
    return sum(row.stops)
