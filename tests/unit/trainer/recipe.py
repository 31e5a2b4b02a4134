"""The whole recipe in one process: a simple sampler, GRPO, plan, batch, update. No log, no HTTP.

    python -m tests.unit.trainer.recipe --seeds 0 1 2 --steps 100 150

prints held-out scores before and after, and milliseconds per step. What it shows is that training learns; the sampler computes every
sequence anew for each token.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from infra.demo.next_letter import MAX_TOKENS, Words, score, words
from infra.demo.warm_up import warm_up
from models.chat import CharacterChat
from models.qwen2 import Qwen2
from schemas.arrays import pack_f4, pack_i4
from schemas.session import Sampling
from schemas.training import Place, Plan
from schemas.trajectory import Node, Trajectory
from trainer.advantages import Grpo
from trainer.layout import LayoutSettings, lay_out
from trainer.learner import Learner
from trainer.numerics import settle
from trainer.optimizer import OptimizerSettings
from trainer.paths import paths_of
from trainer.update import LossSettings, apply

PROMPTS, GROUP = 4, 8


@dataclass
class Recipe:
    """A run in progress: the sampler is one batch ahead of the learner."""

    seed: int
    chat: CharacterChat = field(default_factory=CharacterChat)
    spent_s: dict[str, float] = field(default_factory=lambda: {"sample": 0.0, "train": 0.0})
    steps: int = 0

    def __post_init__(self) -> None:
        self.words: Words = words(self.seed)
        self.learner = Learner(warm_up(self.chat, self.seed), OptimizerSettings())
        self.draw = random.Random(f"prompts {self.seed}")
        self.generator = torch.Generator().manual_seed(self.seed)
        self.ahead = self.episodes()

    def step(self) -> None:
        """Sample the next batch under the present weights, then train on the one sampled before."""
        began = time.perf_counter()
        current, self.ahead = self.ahead, self.episodes()
        sampled = time.perf_counter()
        plan = planned(current)
        if plan is not None:
            apply(self.learner, plan, [trajectory for trajectory, _ in current], LossSettings())
        self.steps += 1
        self.spent_s["sample"] += sampled - began
        self.spent_s["train"] += time.perf_counter() - sampled

    def episodes(self) -> list[tuple[Trajectory, float]]:
        """A batch of sessions with their rewards, group after group."""
        chosen = [word for word in self.draw.sample(self.words.train, PROMPTS) for _ in range(GROUP)]
        return sample(self.learner.model, self.chat, chosen, self.generator, self.steps)

    def held_out(self) -> float:
        """Mean score of the held-out words, one sample each at temperature 1, always with the same random numbers."""
        generator = torch.Generator().manual_seed(1234)
        scored = sample(self.learner.model, self.chat, self.words.held_out, generator, self.steps)
        return sum(reward for _, reward in scored) / len(scored)


def planned(episodes: Sequence[tuple[Trajectory, float]]) -> Plan | None:
    """The plan of a batch; None where no group has a signal."""
    places = [Place(partition=0, offset=index, session=index) for index in range(len(episodes))]
    rows = []
    for first in range(0, len(episodes), GROUP):
        advantages = Grpo()([reward for _, reward in episodes[first : first + GROUP]])
        if not any(advantages):
            continue
        for place, advantage in enumerate(advantages, start=first):
            rows += [path.row(place, advantage) for path in paths_of(episodes[place][0])]
    return lay_out(places, rows, LayoutSettings()) if rows else None


@torch.no_grad()
def sample(
    model: Qwen2, chat: CharacterChat, prompts: Sequence[str], generator: torch.Generator, version: int
) -> list[tuple[Trajectory, float]]:
    """One answer per prompt, all prompts of one length."""
    given = [[*chat.opening(), *chat.message("user", word), *chat.generation()] for word in prompts]
    tokens, logprobs = torch.tensor(given), torch.zeros(len(given), 0)
    for _ in range(MAX_TOKENS):
        logits = model(tokens, torch.arange(tokens.shape[1])[None])[:, -1]
        distribution = torch.log_softmax(logits, -1)
        token = torch.multinomial(distribution.exp(), 1, generator=generator)
        tokens = torch.cat([tokens, token], 1)
        logprobs = torch.cat([logprobs, distribution.gather(1, token)], 1)
    sampled = tokens[:, len(given[0]) :].tolist()
    drawn = zip(given, sampled, logprobs.tolist(), strict=True)
    return [episode(chat, index, word, each, version) for index, (word, each) in enumerate(zip(prompts, drawn, strict=True))]


def episode(
    chat: CharacterChat, session: int, word: str, drawn: tuple[list[int], list[int], list[float]], version: int
) -> tuple[Trajectory, float]:
    """A session of one request, cut after its first end token, and its score."""
    prompt, sampled, logprobs = drawn
    end = chat.stop_token_ids[0]
    ended = end in sampled
    count = sampled.index(end) + 1 if ended else len(sampled)
    node = Node(
        request=session,
        prompt=len(prompt),
        tokens=pack_i4(prompt + sampled[:count]),
        mask=bytes([0] * len(prompt) + [1] * count),
        logprobs=pack_f4([0.0] * len(prompt) + logprobs[:count]),
        versions=pack_i4([-1] * len(prompt) + [version] * count),
        sampling=Sampling(max_tokens=MAX_TOKENS),
        end="stop" if ended else "length",
    )
    return Trajectory(session=session, close=session, nodes=[node]), score(word, chat.decode(sampled[:count]), ended)


def main() -> None:
    """Print a line per seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, nargs="+", default=[100, 150])
    chosen = parser.parse_args()
    settle()
    for seed in chosen.seeds:
        began = time.perf_counter()
        recipe = Recipe(seed)
        scores = [f"before {recipe.held_out():.3f} (set-up {time.perf_counter() - began:.1f} s)"]
        for target in chosen.steps:
            while recipe.steps < target:
                recipe.step()
            scores.append(f"{target}: {recipe.held_out():.3f}")
        spent = {name: f"{total / recipe.steps * 1e3:.1f} ms" for name, total in recipe.spent_s.items()}
        print(f"seed {seed}: {', '.join(scores)}; per step {spent}; {time.perf_counter() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
