"""The demo's task: each letter becomes the next one in the alphabet (`hello` → `ifmmp`, z → a). Prompts, verifier, answers. No torch.

Invariants: the words are a function of the seed; all are distinct, so that no held-out word is ever trained on; a score lies in
[0, 1], is 1 for `answer(word)` alone, and 0 without an end token.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from string import ascii_lowercase

__all__ = ["HELD_OUT", "MAX_TOKENS", "WORDS", "WORD_LENGTH", "Words", "answer", "payload", "score", "words"]

WORD_LENGTH = 5
"""A fixed length: with words of several lengths the small model learns when to stop long before it learns letters."""
WORDS = 20_000
HELD_OUT = 128
MAX_TOKENS = WORD_LENGTH + 1
"""The letters and an end token."""

_NEXT = str.maketrans(ascii_lowercase, ascii_lowercase[1:] + ascii_lowercase[0])


@dataclass(frozen=True, slots=True)
class Words:
    """Prompts: those that are trained on, and those for evaluation alone."""

    train: tuple[str, ...]
    held_out: tuple[str, ...]


def words(seed: int) -> Words:
    """`WORDS` distinct words, the first `HELD_OUT` of them held out."""
    draw = random.Random(f"next letter {seed}")
    found: dict[str, None] = {}
    while len(found) < WORDS:
        found["".join(draw.choices(ascii_lowercase, k=WORD_LENGTH))] = None
    ordered = tuple(found)
    return Words(train=ordered[HELD_OUT:], held_out=ordered[:HELD_OUT])


def payload(word: str) -> dict[str, str]:
    """What a Task carries for the agent and the reward rule. The agent's one user message is the word itself."""
    return {"word": word}


def answer(word: str) -> str:
    """The right answer to a word of lower-case letters."""
    return word.translate(_NEXT)


def score(word: str, answer_text: str, ended: bool) -> float:
    """Matching positions / max(length of the answer, 5); 0 unless the model ended its answer itself."""
    if not ended:
        return 0.0
    matching = sum(said == right for said, right in zip(answer_text, answer(word), strict=False))
    return matching / max(len(answer_text), WORD_LENGTH)
