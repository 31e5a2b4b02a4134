"""Weights become a version: files first, then the record that announces them (R8).

Invariant: when `publish` returns, every file that the record names is complete under a name made of its content's digest. The record
is not in the log yet: whoever writes it may do so, or die, and nothing is half announced.
"""

from __future__ import annotations

from pathlib import Path

from models.chat import Chat
from models.qwen2 import Qwen2
from models.weights import weights_sha256, write_weights
from schemas.training import WeightVersion

__all__ = ["publish"]


def publish(folder: Path, model: Qwen2, chat: Chat, *, version: int, step: int | None) -> WeightVersion:
    """Write the model's tensors into `folder` and describe them. The same weights again cost one file, not two.

    :param step: the Step that made them; None for version 0.
    :raises ValueError: version 0 with a step, or another version without.
    """
    if (version == 0) != (step is None):
        raise ValueError(f"version {version} cannot come from step {step}: version 0, and it alone, is the initial model")
    weights = model.state_dict()
    return WeightVersion(
        version=version,
        step=step,
        files=[write_weights(folder, weights)],
        weights_sha256=weights_sha256(weights),
        tokenizer_sha256=chat.tokenizer_sha256,
        template_sha256=chat.template_sha256,
        config=model.config.to_dict(),
    )
