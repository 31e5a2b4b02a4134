"""What a user of the pipeline would write: tasks, a reward rule, and agents that misbehave as agents do.

Invariant: everything is a function of the task's seed or of the trajectory, never of a clock.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import aiohttp
import anyio
import orjson

from models.chat import Chat
from schemas.arrays import unpack_i4
from schemas.trajectory import Trajectory
from workers.agents.episode import AgentSawError, Episode, Outcome
from workers.reward.rule import Verdict

RULE = "parity"
TRIES = 6
RETRY_S = 0.3
THINKS_S = (1.5, 3.5)
"""About as long as the assembler waits until it calls a session idle."""
OK, UNAVAILABLE = 200, 503
DONE = "data: [DONE]\n\n"


class Tasks:
    """Payload n is n; nothing is evaluated."""

    def train(self, index: int) -> dict[str, Any]:
        """The payload of a training group."""
        return {"n": index}

    def evaluation(self) -> Sequence[dict[str, Any]]:
        """One payload."""
        return [{"n": -1}]


def tasks(seed: int) -> Tasks:
    """The task set."""
    return Tasks()


class Rule:
    """A reward by what was sampled; now and then the rule itself fails."""

    name = RULE
    version = 1

    def score(self, trajectory: Trajectory, chat: Chat) -> Verdict:
        """The verdict."""
        total = trajectory.session + sum(sum(unpack_i4(node.tokens)[node.prompt :]) for node in trajectory.nodes)
        if total % 19 == 0:
            raise ValueError("this trajectory cannot be judged")
        return Verdict(float(total % 5))


class Misbehaviour(Exception):
    """An agent's own fault."""


async def agent(episode: Episode) -> Outcome:
    """One to three calls, some streamed; some are given up, some begin anew from an earlier turn, and some agents break down."""
    chance = random.Random(episode.task.seed)
    messages: list[dict[str, str]] = [{"role": "user", "content": str(episode.payload["n"])}]
    for turn in range(chance.choice((1, 1, 2, 2))):
        if chance.random() < 0.015:
            _tell(episode, "agent fails")
            raise Misbehaviour("this agent breaks down")
        if turn and chance.random() < 0.2:
            await anyio.sleep(chance.uniform(*THINKS_S))
        if chance.random() < 0.03:
            await _give_up(episode, messages)
        answer = await _ask(episode, messages, max_tokens=chance.randint(2, 6), stream=chance.random() < 0.4)
        if chance.random() < 0.2:
            continue  # the same history again: a second answer to it, another branch
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"turn {turn}"}]
    return Outcome(reward=1.0)


async def _ask(episode: Episode, messages: list[dict[str, str]], **parameters: Any) -> str:
    """One answer. A gateway that is away or breaks off is asked again, as agents do."""
    for _ in range(TRIES):
        try:
            return await (_streamed if parameters.get("stream") else _whole)(episode, messages, parameters)
        except (aiohttp.ClientError, TimeoutError, AgentSawError) as error:
            if isinstance(error, AgentSawError) and error.status != UNAVAILABLE:
                raise
            await anyio.sleep(RETRY_S)
    raise Misbehaviour("no gateway answers")


async def _whole(episode: Episode, messages: list[dict[str, str]], parameters: dict[str, Any]) -> str:
    answer = await episode.chat(messages, **parameters)
    text: str = answer["choices"][0]["message"]["content"]
    return text


async def _streamed(episode: Episode, messages: list[dict[str, str]], parameters: dict[str, Any]) -> str:
    body = orjson.dumps({"model": "policy", "messages": messages, **parameters})
    async with episode.http.post(f"{episode.base_url}/chat/completions", data=body) as response:
        said = (await response.read()).decode()
        if response.status != OK:
            raise AgentSawError(response.status, said)
    if not said.endswith(DONE):
        raise aiohttp.ClientPayloadError("the stream broke off")
    events = [orjson.loads(line.removeprefix("data: ")) for line in said.splitlines() if line.startswith("data: {")]
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


async def _give_up(episode: Episode, messages: list[dict[str, str]]) -> None:
    """Ask, and leave before the answer is there."""
    with anyio.move_on_after(0.2) as scope:
        await _ask(episode, messages, max_tokens=9)
    if scope.cancelled_caught:
        _tell(episode, "agent cancels")


def _tell(episode: Episode, kind: str) -> None:
    """The network knows the world."""
    episode.http.strike(kind)  # type: ignore[attr-defined]
