"""The shape of a Qwen2 network, as a `config.json` that transformers reads, too. No torch.

Invariant: `Qwen2Config.read(folder)` after `config.write(folder)` is equal to `config`. What this software's network cannot do
(sliding windows, scaled RoPE, another activation) is refused when it is read, never ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from schemas.errors import UsageError

__all__ = ["CONFIG_FILE", "Qwen2Config"]

CONFIG_FILE = "config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen2Config:
    """Sizes of a Qwen2 network; the default is the demo's: 344 k parameters.

    :raises ValueError: the heads do not divide the hidden size, or the key-value heads the heads.
    """

    vocab_size: int = 58
    hidden_size: int = 128
    intermediate_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.hidden_size % (2 * self.num_attention_heads) or self.num_attention_heads % self.num_key_value_heads:
            heads = f"{self.num_attention_heads} heads and {self.num_key_value_heads} key-value heads"
            raise ValueError(f"hidden size {self.hidden_size} cannot be shared by {heads} of an even width")

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_attention_heads

    def to_dict(self) -> dict[str, Any]:
        """The content of `config.json`; also what a WeightVersion carries."""
        own = {name: getattr(self, name) for name in self.__slots__}
        rope = {"rope_type": "default", "rope_theta": self.rope_theta}
        return {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "torch_dtype": "float32",
                "rope_parameters": rope, "use_cache": False, **own}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read a `config.json` of Qwen2, written by this software or by transformers 4 or 5.

        :raises ValueError: it describes a network that this software does not have.
        """
        _require_plain(content)
        rope = content.get("rope_parameters") or content
        known = {name: content[name] for name in cls.__slots__ if content.get(name) is not None}
        return cls(**{**known, "rope_theta": float(rope.get("rope_theta", 10_000.0))})

    def write(self, folder: Path) -> None:
        """Write `config.json` into a model folder that exists."""
        (folder / CONFIG_FILE).write_text(json.dumps(self.to_dict(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read `config.json` of a model folder.

        :raises UsageError: it is missing, or describes a network that this software does not have.
        """
        path = folder / CONFIG_FILE
        try:
            return cls.from_dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(f"{path} cannot be used as the config of a model: {error}") from error


def _require_plain(content: Mapping[str, Any]) -> None:
    rope = content.get("rope_parameters") or content.get("rope_scaling") or {}
    head_dim = content.get("head_dim")
    refused = {
        "model_type": content.get("model_type", "qwen2") != "qwen2",
        "hidden_act": content.get("hidden_act", "silu") != "silu",
        "use_sliding_window": bool(content.get("use_sliding_window")),
        "rope_parameters": rope.get("rope_type", "default") != "default",
        "head_dim": head_dim is not None and head_dim * content["num_attention_heads"] != content["hidden_size"],
    }
    if named := [name for name, is_refused in refused.items() if is_refused]:
        raise ValueError(f"only plain Qwen2 is known here; not supported as given: {', '.join(named)}")
