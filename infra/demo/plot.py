"""A small plot in characters: rewards over versions, on a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

BLOCKS = " ▁▂▃▄▅▆▇█"


def plot(values: Sequence[float], width: int, height: int, low: float = 0.0, high: float = 1.0) -> list[str]:
    """`values` as columns of block characters, `height` lines from top to bottom, at most `width` columns.

    More values than columns are averaged by column; values outside [low, high] are cut.
    """
    if not values or width < 1 or height < 1:
        return [""] * max(height, 0)
    levels = [_level(value, height, low, high) for value in _columns(values, width)]
    return ["".join(_cell(level, row) for level in levels) for row in range(height - 1, -1, -1)]


def _columns(values: Sequence[float], width: int) -> list[float]:
    count = min(width, len(values))
    bounds = [len(values) * index // count for index in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(bounds)]


def _level(value: float, height: int, low: float, high: float) -> int:
    """Height of a column in eighths of a line."""
    share = min(1.0, max(0.0, (value - low) / (high - low)))
    return round(share * height * (len(BLOCKS) - 1))


def _cell(level: int, row: int) -> str:
    full = len(BLOCKS) - 1
    return BLOCKS[min(full, max(0, level - row * full))]
