"""Attention over packed rows: each segment sees itself alone, and nothing is padded.

Invariant: outputs equal those of each segment run by itself (to 1e-6; bit for bit where no two neighbours have one length).

Neighbours of equal length are computed in one call, because a call of SDPA costs more than its work on short segments. A mask over the
whole pack gives the same numbers at two to three times the cost on a CPU, flex_attention has no backward there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from models.qwen2 import Attention

__all__ = ["per_segment"]


def per_segment(lengths: Sequence[int]) -> Attention:
    """Causal attention for one packed row of segments of these lengths: fits `models.qwen2.Qwen2.forward`.

    Queries float[1, heads, T, head_dim], keys and values float[1, key-value heads, T, head_dim], T the sum of `lengths`.
    """
    runs = [(length, len(list(same))) for length, same in groupby(lengths)]
    sizes = [length * count for length, count in runs]

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        del layer
        split = [torch.split(tensor, sizes, dim=2) for tensor in (queries, keys, values)]
        parts = zip(*split, strict=True)
        return torch.cat([_equal_segments(q, k, v, count) for (q, k, v), (_, count) in zip(parts, runs, strict=True)], dim=2)

    return attend


def _equal_segments(queries: Tensor, keys: Tensor, values: Tensor, count: int) -> Tensor:
    """Segments become rows of a batch and come back: [1, heads, count · length, width] ↔ [count, heads, length, width]."""
    if count == 1:
        return _causal(queries, keys, values)
    rows = [torch.unflatten(tensor[0], 1, (count, -1)).transpose(0, 1) for tensor in (queries, keys, values)]
    return _causal(*rows).transpose(0, 1).flatten(1, 2)[None]


def _causal(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    shared = queries.shape[1] != keys.shape[1]
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=shared)
