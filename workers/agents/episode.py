"""What an agent gets, and what it answers. Agent code needs nothing else of this project.

    async def agent(episode: Episode) -> Outcome:
        reply = await episode.openai.chat.completions.create(model="policy", messages=[…])
        return Outcome()

Frameworks that make their own client take `episode.base_url` (OPENAI_BASE_URL) instead.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from schemas.task import Task
from workers.plugin import storable

if TYPE_CHECKING:
    import aiohttp
    from openai import AsyncOpenAI


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode went, in the runner's words; `reward` if the environment itself gives one (rule `reported`)."""

    outcome: str = "ok"
    reward: float | None = None


def checked(answer: object) -> Outcome:
    """What an agent answered, in plain text and numbers.

    :raises TypeError: it is no Outcome, or its reward is no number.
    :raises ValueError: its reward is not finite.
    """
    if not isinstance(answer, Outcome):
        raise TypeError(f"the agent answered {type(answer).__name__}, not an Outcome")
    reward = None if answer.reward is None else float(answer.reward)
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"the agent's reward is {reward}")
    return Outcome(storable(str(answer.outcome)), reward)


class AgentSawError(Exception):
    """A call was not answered with 200: status and body, as the agent saw them."""

    def __init__(self, status: int, body: str) -> None:
        super().__init__(f"{status}: {body[:500]}")
        self.status = status


@dataclass(frozen=True, slots=True)
class Episode:
    """One try at one task. `base_url` ends in /v1 and reaches this session alone."""

    task: Task
    base_url: str
    http: aiohttp.ClientSession
    shared_openai: AsyncOpenAI

    @property
    def payload(self) -> Mapping[str, Any]:
        """The environment's own data."""
        return self.task.payload

    @property
    def openai(self) -> AsyncOpenAI:
        """The openai client for this session. It shares its connections: a new client per episode costs 47 ms."""
        return self.shared_openai.with_options(base_url=self.base_url)

    async def chat(self, messages: Sequence[Mapping[str, str]], **parameters: Any) -> dict[str, Any]:
        """A chat completion by plain HTTP, for loads at which the openai client would be most of the cost; answers the JSON body.

        :raises AgentSawError: the gateway refused or failed.
        """
        body = orjson.dumps({"model": "policy", "messages": messages, **parameters})
        async with self.http.post(f"{self.base_url}/chat/completions", data=body, headers=JSON) as response:
            said = await response.read()
            if response.status != 200:
                raise AgentSawError(response.status, said.decode(errors="replace"))
            answer: dict[str, Any] = orjson.loads(said)
            return answer


JSON = {"content-type": "application/json"}

Agent = Callable[[Episode], Awaitable[Outcome]]
