"""A small learner and batches made from a seed.

    python -m tests.unit.trainer.small CHECKPOINTS WEIGHTS_SHA256

trains on batches 1 … 5 from the beginning, and on 3 … 5 from the checkpoint of step 2, and prints the digests of both.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from models.config import Qwen2Config
from models.qwen2 import initial
from schemas.training import Plan
from schemas.trajectory import Trajectory
from tests.unit.trainer.trees import node, place, trajectory
from trainer import checkpoint
from trainer.layout import LayoutSettings, lay_out
from trainer.learner import Learner
from trainer.numerics import settle
from trainer.optimizer import OptimizerSettings
from trainer.paths import paths_of
from trainer.update import Applied, LossSettings, apply

CONFIG = Qwen2Config(vocab_size=20, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)
LAYOUT = LayoutSettings(micro_batch_tokens=24, mini_batches=2, epochs=2)


def learner() -> Learner:
    return Learner(initial(CONFIG, seed=5), OptimizerSettings(learning_rate=1e-2))


def branched(draw: random.Random, session: int) -> Trajectory:
    """Two turns and a branch in the middle of the first answer, at several temperatures."""

    def some(count: int) -> list[int]:
        return [draw.randrange(20) for _ in range(count)]

    def logprobs(count: int) -> list[float]:
        return [-3.0 + draw.random() for _ in range(count)]

    first = draw.randint(2, 5)
    return trajectory(
        node(some(3), some(first), logprobs=logprobs(first), temperature=0.7),
        node(some(2), some(3), parent=0, parent_length=3 + first, logprobs=logprobs(3)),
        node(some(1), some(2), parent=0, parent_length=4, logprobs=logprobs(2), temperature=1.3),
        session=session,
    )


def batch(seed: int) -> tuple[Plan, list[Trajectory]]:
    """Four branched sessions with advantages of both signs."""
    draw = random.Random(seed)
    trajectories = [branched(draw, session) for session in range(4)]
    rows = [path.row(index, draw.uniform(-2, 2)) for index, each in enumerate(trajectories) for path in paths_of(each)]
    return lay_out([place(session) for session in range(4)], rows, LAYOUT, seed=seed), trajectories


def train(subject: Learner, first: int, last: int) -> list[Applied]:
    return [apply(subject, *batch(step), LossSettings()) for step in range(first, last + 1)]


def main() -> None:
    settle()
    straight, resumed = learner(), learner()
    train(straight, 1, 5)
    newest = checkpoint.newest(Path(sys.argv[1]), {2: sys.argv[2]})
    assert newest is not None
    checkpoint.load(newest, resumed)
    train(resumed, 3, 5)
    print(json.dumps({"straight": straight.digests(), "resumed": resumed.digests()}))


if __name__ == "__main__":
    main()
