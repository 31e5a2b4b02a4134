"""Agents for tests, loaded by name as any other."""

from __future__ import annotations

import anyio

from workers.agents.episode import Episode, Outcome


async def reverse(episode: Episode) -> Outcome:
    """One call by plain HTTP; its reward is how long the answer is."""
    answer = await episode.chat([{"role": "user", "content": episode.payload["word"]}], max_tokens=5, seed=episode.task.seed)
    return Outcome("ok", float(len(answer["choices"][0]["message"]["content"])))


async def openai_reverse(episode: Episode) -> Outcome:
    """The same by the openai client."""
    asked = [{"role": "user", "content": episode.payload["word"]}]
    answer = await episode.openai.chat.completions.create(model="policy", messages=asked, max_tokens=5)  # type: ignore[call-overload]
    return Outcome(answer.choices[0].message.content)


async def broken(episode: Episode) -> Outcome:
    """A defect of its own."""
    raise RuntimeError("no idea")


class Gate:
    """Episodes of `wait` that run now, the most at once, and what lets them end."""

    running: set[int] = set()
    most = 0
    opened: dict[int, anyio.Event] = {}


async def wait(episode: Episode) -> Outcome:
    """Until the gate of its task opens."""
    Gate.running.add(episode.task.number)
    Gate.most = max(Gate.most, len(Gate.running))
    await Gate.opened.setdefault(episode.task.number, anyio.Event()).wait()
    Gate.running.discard(episode.task.number)
    return Outcome()
