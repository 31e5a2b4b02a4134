"""A task set for tests: payloads say which they are."""

from __future__ import annotations

from typing import Any


class Counted:
    """Training payload n is `{"n": n}`; two prompts are held out."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def train(self, index: int) -> dict[str, Any]:
        return {"n": index, "seed": self.seed}

    def evaluation(self) -> list[dict[str, Any]]:
        return [{"held out": 0}, {"held out": 1}]
