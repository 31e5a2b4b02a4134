"""Packed attention against its oracle: each segment by itself."""

from __future__ import annotations

import pytest
import torch

from models.config import Qwen2Config
from models.qwen2 import causal_attention, initial
from trainer.attention import per_segment

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("key_value_heads", [4, 2])
@pytest.mark.parametrize(
    ("lengths", "tolerance"),
    [([5], 0.0), ([3, 7, 4], 0.0), ([1, 6, 1], 0.0), ([4, 4, 4], 1e-6), ([2, 2, 5, 3, 3, 3], 1e-6)],
)
def test_each_segment_sees_itself_alone(key_value_heads: int, lengths: list[int], tolerance: float) -> None:
    torch.manual_seed(0)
    total = sum(lengths)
    # Slices of a transposed tensor, as the network hands them over.
    queries = torch.randn(1, total, 4, 8).transpose(1, 2)
    keys, values = torch.randn(2, 1, total, key_value_heads, 8).transpose(2, 3).unbind()
    packed = per_segment(lengths)(0, queries, keys, values)
    parts = zip(*(tensor.split(lengths, dim=2) for tensor in (queries, keys, values)), strict=True)
    alone = torch.cat([causal_attention(0, *part) for part in parts], dim=2)
    assert packed.shape == alone.shape
    assert float((packed - alone).abs().max()) <= tolerance


def test_logits_of_a_packed_row_are_those_of_each_sequence_alone() -> None:
    config = Qwen2Config(hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)
    model = initial(config, seed=1)
    lengths = [6, 9, 9, 2]
    sequences = [torch.randint(0, config.vocab_size, (1, length), generator=torch.Generator().manual_seed(length)) for length in lengths]
    positions = [torch.arange(length)[None] for length in lengths]
    with torch.no_grad():
        packed = model(torch.cat(sequences, 1), torch.cat(positions, 1), per_segment(lengths))
        alone = torch.cat([model(each, place) for each, place in zip(sequences, positions, strict=True)], 1)
    assert float((packed - alone).abs().max()) <= 1e-5 * float(alone.abs().max())
