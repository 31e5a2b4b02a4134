"""Qwen2 in 150 lines, with the parameter names of transformers, so that its safetensors load there and the other way round.

transformers is not imported: its model class costs every torch process 12 more seconds of CPU at each start
(docs/decisions/0001-own-qwen2.md). What it lacks here is what this system does not use: sliding windows, scaled RoPE, dropout.

Invariants:
- with equal weights, logits equal those of transformers' Qwen2ForCausalLM within 1e-5 in float32, and gradients likewise;
- the network has no idea of batches, padding or caches: positions are given, and attention is a callable that sees one layer's
  queries, keys and values. The trainer passes attention per segment of a packed row, the engine one over its cache.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.config import Qwen2Config

__all__ = ["Attention", "Qwen2", "causal_attention", "initial"]

Attention = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""(layer, queries, keys, values) -> mixed values. Queries and result float[rows, heads, length, head_dim]; keys and values
float[rows, key-value heads, length, head_dim]; rotated by their positions already. Scale is head_dim ** -0.5."""


def causal_attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Each row is one sequence: every token sees itself and those before it. Right padding therefore changes nothing before it."""
    del layer
    return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True, enable_gqa=_shared(queries, keys))


class Qwen2(nn.Module):
    """The network. `forward` gives logits; `hidden` and `head` are its halves, for callers that need logits of a few tokens only."""

    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.config = config
        self.model = _Body(config)
        self.lm_head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention = causal_attention) -> Tensor:
        """Logits float[rows, length, vocabulary] of `tokens` int64[rows, length] at `positions` int64[rows, length] (or broadcast)."""
        return self.head(self.hidden(tokens, positions, attention))

    def hidden(self, tokens: Tensor, positions: Tensor, attention: Attention = causal_attention) -> Tensor:
        """The last hidden states, normalised: float[rows, length, hidden]."""
        states: Tensor = self.model(tokens, positions, attention)
        return states

    def head(self, hidden: Tensor) -> Tensor:
        """Logits float[…, vocabulary] of hidden states float[…, hidden]."""
        weight = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        return functional.linear(hidden, weight)


def initial(config: Qwen2Config, seed: int) -> Qwen2:
    """A network with random weights, the same for the same seed: normal with `initializer_range`, biases 0, norms 1."""
    network = Qwen2(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            elif "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0.0, config.initializer_range, generator=generator)
    return network


class _Body(nn.Module):
    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(_Layer(config, index) for index in range(config.num_hidden_layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
        self.register_buffer("frequencies", 1.0 / config.rope_theta**exponents, persistent=False)

    def forward(self, tokens: Tensor, positions: Tensor, attention: Attention) -> Tensor:
        rotation = self._rotation(positions)
        states = self.embed_tokens(tokens)
        for layer in self.layers:
            states = layer(states, rotation, attention)
        normalised: Tensor = self.norm(states)
        return normalised

    def _rotation(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosine and sine float[rows, length, 1, head_dim] of every position's angles."""
        half = positions[..., None, None].float() * self.get_buffer("frequencies")
        angles = torch.cat((half, half), dim=-1)
        return angles.cos(), angles.sin()


class _Layer(nn.Module):
    def __init__(self, config: Qwen2Config, index: int) -> None:
        super().__init__()
        self.self_attn = _SelfAttention(config, index)
        self.mlp = _Mlp(config)
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        states = states + self.self_attn(self.input_layernorm(states), rotation, attention)
        result: Tensor = states + self.mlp(self.post_attention_layernorm(states))
        return result


class _SelfAttention(nn.Module):
    def __init__(self, config: Qwen2Config, index: int) -> None:
        super().__init__()
        self.index, self.head_dim = index, config.head_dim
        width, shared = config.hidden_size, config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, shared)
        self.v_proj = nn.Linear(width, shared)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, states: Tensor, rotation: tuple[Tensor, Tensor], attention: Attention) -> Tensor:
        queries = _rotate(self._heads(self.q_proj(states)), rotation)
        keys = _rotate(self._heads(self.k_proj(states)), rotation)
        values = self._heads(self.v_proj(states))
        mixed = attention(self.index, queries.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2))
        result: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(-2))
        return result

    def _heads(self, projected: Tensor) -> Tensor:
        return projected.view(*projected.shape[:-1], -1, self.head_dim)


class _Mlp(nn.Module):
    def __init__(self, config: Qwen2Config) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        result: Tensor = self.down_proj(functional.silu(self.gate_proj(states)) * self.up_proj(states))
        return result


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """RoPE (Su et al., arXiv 2104.09864) in the half-split layout of Qwen2: float[rows, length, heads, head_dim]."""
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return heads * cosine + torch.cat((-second, first), dim=-1) * sine


def _shared(queries: Tensor, keys: Tensor) -> bool:
    return queries.shape[1] != keys.shape[1]
