"""A model folder: what a run starts from. transformers reads it, too.

Invariant: `read_model(folder)` after `write_model(folder, …)` gives the same config, weights and chat.
"""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from models.chat import Chat, load_chat
from models.config import Qwen2Config
from models.qwen2 import Qwen2
from models.weights import require_fit
from schemas.errors import EngineError, UsageError

__all__ = ["MODEL_FILE", "read_model", "write_model"]

MODEL_FILE = "model.safetensors"


def write_model(folder: Path, model: Qwen2, chat: Chat) -> None:
    """Write `config.json`, `tokenizer.json` and `model.safetensors` into `folder`, made if missing. The weights come last."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.write(folder)
    chat.save(folder)
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / MODEL_FILE, metadata={"format": "pt"})


def read_model(folder: Path) -> tuple[Qwen2, Chat]:
    """The network and the chat of a model folder.

    :raises UsageError: a file is missing or broken, or the weights do not fit the config.
    """
    model, chat = Qwen2(Qwen2Config.read(folder)), load_chat(folder)
    try:
        tensors = load_file(folder / MODEL_FILE)
        require_fit(tensors, model)
    except (OSError, SafetensorError, EngineError) as error:
        raise UsageError(f"{folder / MODEL_FILE} cannot be used as weights: {error}") from error
    model.load_state_dict(tensors)
    return model, chat
