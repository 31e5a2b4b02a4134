"""Keys and values of the running rows, and attention over them.

One tensor float[layers, 2, rows, key-value heads, capacity, head_dim]; a row's tokens stand at its first places, whatever the lengths
of the others. What stands beyond a row's length is finite and masked, so rows need no padding, and running rows are always the first ones:
no gather before a step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.config import Qwen2Config
from models.qwen2 import Attention, causal_attention

__all__ = ["Cache"]

_FIRST_CAPACITY = 64


class Cache:
    """Room for `rows` sequences; grows in length by doubling, up to `config.max_position_embeddings`."""

    def __init__(self, config: Qwen2Config, rows: int) -> None:
        self._longest = config.max_position_embeddings
        self._scale = config.head_dim**-0.5
        self._rows = torch.arange(rows)
        self._store = torch.zeros(config.num_hidden_layers, 2, rows, config.num_key_value_heads, 0, config.head_dim)

    def free(self) -> None:
        """Give the memory back, with all that was kept; what is stored next takes new memory."""
        self._store = self._store[..., :0, :].clone()

    def prefilling(self, start: int, length: int) -> Attention:
        """Causal attention of new rows from place `start` on, padded on the right to `length`, which also stores their keys and values."""
        self._reserve(length)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            rows = slice(start, start + keys.shape[0])
            self._store[layer, 0, rows, :, :length] = keys
            self._store[layer, 1, rows, :, :length] = values
            return causal_attention(layer, queries, keys, values)

        return attend

    def decoding(self, positions: Tensor, longest: int) -> Attention:
        """Attention of one new token per row at `positions` int64[rows], the greatest of which is `longest`, over the row's cache."""
        used = longest + 1
        self._reserve(used)
        rows = self._rows[: len(positions)]
        hidden = torch.arange(used) > positions[:, None]
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))[:, None, None, :]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            stored_keys, stored_values = self._store[layer, 0, : len(rows)], self._store[layer, 1, : len(rows)]
            stored_keys[rows, :, positions] = keys[:, :, 0]
            stored_values[rows, :, positions] = values[:, :, 0]
            # Heads that share keys become the query length of one product: nothing is expanded. For one token per row
            # two products are a third faster than scaled_dot_product_attention.
            grouped = queries.reshape(len(rows), keys.shape[1], -1, queries.shape[-1])
            scores = torch.matmul(grouped * self._scale, stored_keys[:, :, :used].transpose(-1, -2)) + mask
            return torch.matmul(scores.softmax(dim=-1), stored_values[:, :, :used]).reshape(queries.shape)

        return attend

    def move(self, moves: list[tuple[int, int]]) -> None:
        """Copy whole rows: pairs (from, to), all read before any is written."""
        if moves:
            sources, targets = zip(*moves, strict=True)
            self._store[:, :, list(targets)] = self._store[:, :, list(sources)]

    def _reserve(self, length: int) -> None:
        capacity = self._store.shape[4]
        if length <= capacity:
            return
        capacity = max(capacity, _FIRST_CAPACITY)
        while capacity < length:
            capacity *= 2
        shape = list(self._store.shape)
        shape[4] = min(capacity, self._longest)
        # Zeros, for a masked place still enters a product: 0 times uninitialised memory can be NaN.
        grown = torch.zeros(shape)
        grown[..., : self._store.shape[4], :] = self._store
        self._store = grown
