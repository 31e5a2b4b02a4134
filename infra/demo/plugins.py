"""The demo's plug-ins over `infra.demo.next_letter`: the task set, the reward rule, and the agents. What a user of their own task writes.

`agent` is ordinary code with the real openai client; `fast_agent` sends the same calls by plain HTTP, because on two cores a client that
costs 3 ms a call would be most of the load. `patient_agent` gets a second try when its answer is wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.demo.next_letter import MAX_TOKENS, Words, answer, payload, score, words
from models.chat import Chat
from schemas.trajectory import Trajectory
from workers.agents.episode import Episode, Outcome
from workers.reward.rule import Verdict, turns

STREAM_EVERY = 4
"""Every fourth openai episode streams."""


class NextLetterTasks:
    """Words to be moved on by one letter; those of the evaluation are never trained on."""

    def __init__(self, seed: int) -> None:
        self._words: Words = words(seed)

    def train(self, index: int) -> dict[str, Any]:
        """Word number `index`; after the last one, from the first again."""
        return payload(self._words.train[index % len(self._words.train)])

    def evaluation(self) -> Sequence[dict[str, Any]]:
        """The held-out words."""
        return [payload(word) for word in self._words.held_out]


def tasks(seed: int) -> NextLetterTasks:
    """The task set for a seed."""
    return NextLetterTasks(seed)


class NextLetterRule:
    """The share of letters that are the next one, in the last answer."""

    name = "next_letter"
    version = 1

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        """0 unless the model ended its answer itself."""
        last = turns(trajectory, chat)[-1]
        return Verdict(score(trajectory.payload["word"], last.answer, last.end == "stop"))


async def agent(episode: Episode) -> Outcome:
    """One question, one answer, by the openai client; now and then as a stream."""
    create = episode.openai.chat.completions.create
    asked: dict[str, Any] = {"model": "policy", "messages": _question(episode), "max_tokens": MAX_TOKENS, "seed": episode.task.seed}
    if episode.task.number % STREAM_EVERY:
        await create(**asked)
        return Outcome()
    async for _ in await create(**asked, stream=True):
        pass
    return Outcome()


async def fast_agent(episode: Episode) -> Outcome:
    """The same by plain HTTP."""
    await episode.chat(_question(episode), max_tokens=MAX_TOKENS, seed=episode.task.seed)
    return Outcome()


async def patient_agent(episode: Episode) -> Outcome:
    """Two turns: a wrong answer is said to be wrong, and may be mended."""
    messages = _question(episode)
    first = await episode.chat(messages, max_tokens=MAX_TOKENS, seed=episode.task.seed)
    said = first["choices"][0]["message"]["content"]
    if said == answer(episode.payload["word"]):
        return Outcome()
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": episode.payload["word"]}]
    await episode.chat(messages, max_tokens=MAX_TOKENS, seed=episode.task.seed + 1)
    return Outcome()


def _question(episode: Episode) -> list[dict[str, str]]:
    return [{"role": "user", "content": episode.payload["word"]}]
