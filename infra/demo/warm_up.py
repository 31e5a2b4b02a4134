"""The demo's initial model: a small Qwen2 that has just learnt that an answer is five letters and an end token.

Reinforcement learning needs an answer that is right now and then. 24 supervised steps give a held-out score of 0.1 to 0.27; 20 start
lower, 36 leave little to learn. Invariant: the folder's bytes are a function of the seed (under one numerics key).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from infra.demo.next_letter import answer, words
from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import Qwen2, initial
from trainer.initial import write_model
from trainer.optimizer import AdamW, OptimizerSettings

__all__ = ["BATCH", "STEPS", "warm_up", "write_initial_model"]

STEPS = 24
BATCH = 64


def write_initial_model(folder: Path, seed: int) -> None:
    """Make a model folder: `config.json`, `tokenizer.json`, `model.safetensors`. An existing one is overwritten."""
    chat = CharacterChat()
    write_model(folder, warm_up(chat, seed), chat)


def warm_up(chat: CharacterChat, seed: int) -> Qwen2:
    """`STEPS` AdamW steps on right answers to `BATCH` training words each, from weights drawn by `seed`."""
    model = initial(Qwen2Config(vocab_size=chat.vocabulary_size), seed)
    optimizer = AdamW(model.named_parameters(), OptimizerSettings(learning_rate=2e-3, weight_decay=0.01, warm_updates=0))
    draw, train = random.Random(f"warm-up {seed}"), words(seed).train
    for _ in range(STEPS):
        _loss(model, chat, draw.sample(train, BATCH)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model


def _loss(model: Qwen2, chat: CharacterChat, chosen: Sequence[str]) -> Tensor:
    """Mean negative log-likelihood of answers and end tokens, given the prompts."""
    prompts = [[*chat.opening(), *chat.message("user", word), *chat.generation()] for word in chosen]
    answers = [[*chat.encode(answer(word)), *chat.stop_token_ids] for word in chosen]
    tokens = torch.tensor([prompt + said for prompt, said in zip(prompts, answers, strict=True)])
    logits = model(tokens[:, :-1], torch.arange(tokens.shape[1] - 1)[None])
    # All prompts have one length, hence so have all answers.
    given = len(prompts[0])
    return functional.cross_entropy(logits[:, given - 1 :].flatten(0, 1), tokens[:, given:].flatten())


if __name__ == "__main__":
    write_initial_model(Path(sys.argv[1]), int(sys.argv[2]))
