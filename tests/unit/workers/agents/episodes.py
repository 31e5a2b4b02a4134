"""Agents for tests, loaded by name as any other."""

from __future__ import annotations

import asyncio
import sys

import anyio
import numpy as np

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


async def leaks_a_cancellation(episode: Episode) -> Outcome:
    """Raises what only a cancelled task should see."""
    raise asyncio.CancelledError


async def awaits_what_is_cancelled(episode: Episode) -> Outcome:
    """Its own task was cancelled, and it waits for it."""
    task = asyncio.ensure_future(asyncio.sleep(9))
    await asyncio.sleep(0)
    task.cancel()
    await task
    return Outcome()


async def exits(episode: Episode) -> Outcome:
    """As a script does."""
    sys.exit(0)


async def interrupts(episode: Episode) -> Outcome:
    """As if a key was pressed."""
    raise KeyboardInterrupt


async def exits_in_a_group(episode: Episode) -> Outcome:
    """The error of a task group."""
    raise BaseExceptionGroup("a group", [SystemExit(0)])


async def answers_nothing(episode: Episode) -> Outcome:
    """Forgets its return statement."""
    return None  # type: ignore[return-value]


class Unprintable(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


async def is_unprintable(episode: Episode) -> Outcome:
    """Raises it."""
    raise Unprintable


async def has_no_end_of_reward(episode: Episode) -> Outcome:
    """Divides by nothing."""
    return Outcome("ok", float("nan"))


async def says_half_a_character(episode: Episode) -> Outcome:
    """What `os.fsdecode` makes of a bad file name."""
    raise ValueError("bad \ud800")


async def sleeps(episode: Episode) -> Outcome:
    """For ever."""
    await anyio.sleep_forever()
    return Outcome()


async def rewards_in_numpy(episode: Episode) -> Outcome:
    """A scalar that no JSON knows, and a text that no encoding does."""
    return Outcome("ok \ud800", np.float32(0.5))  # type: ignore[arg-type]
