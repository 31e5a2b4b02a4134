"""The demo's plug-ins: what is asked, how it is scored, and what each agent says to its session."""

from __future__ import annotations

from typing import Any

import aiohttp
import openai
import pytest

from infra.demo.next_letter import HELD_OUT, MAX_TOKENS
from infra.demo.plugins import NextLetterRule, agent, fast_agent, patient_agent, tasks
from models.chat import CharacterChat
from schemas.arrays import pack_f4, pack_i4
from schemas.session import Sampling
from schemas.task import Task
from schemas.trajectory import Node, NodeEnd, Trajectory
from tests.unit.workers.agents.fake_gateway import FakeGateway, fake_gateway
from workers.agents.episode import Agent, Episode

pytestmark = pytest.mark.anyio

CHAT = CharacterChat()


def node(answer: str, end: NodeEnd = "stop") -> Node:
    tokens = CHAT.encode("hello" + answer)
    return Node(
        request=0, prompt=5, tokens=pack_i4(tokens), mask=bytes(len(tokens)), logprobs=pack_f4([0.0] * len(tokens)),
        versions=pack_i4([0] * len(tokens)), sampling=Sampling(max_tokens=6), end=end,
    )


def value(*nodes: Node) -> float:
    trajectory = Trajectory(session=0, close=1, payload={"word": "hello"}, nodes=list(nodes))
    return NextLetterRule().score(trajectory, CHAT).value


async def play(gateway: FakeGateway, code: Agent) -> list[dict[str, Any]]:
    """What the agent's calls said; the gateway answers each with the last message reversed."""
    task = Task(number=1, group=0, member=1, members=2, payload={"word": "hello"}, seed=7)
    async with aiohttp.ClientSession() as http, openai.AsyncOpenAI(api_key="none", base_url=gateway.url) as client:
        await code(Episode(task, f"{gateway.url}/s/0-1-abcdef/v1", http, client))
    return [body for _, body in gateway.chats]


def test_the_last_answer_is_scored() -> None:
    assert value(node("ifmmp")) == 1.0
    assert value(node("ifmmx")) == pytest.approx(0.8)
    assert value(node("ifmmp", "length")) == 0.0
    assert value(node("xxxxx"), node("ifmmp")) == 1.0
    assert value(node("ifmmp"), node("xxxxx")) == 0.0


def test_no_held_out_word_is_trained_on_and_words_follow_from_the_seed() -> None:
    held_out = [payload["word"] for payload in tasks(3).evaluation()]
    trained = [tasks(3).train(0)["word"], *(made["word"] for made in map(tasks(3).train, range(20_000)))]
    assert len(set(held_out)) == HELD_OUT
    assert not set(held_out) & set(trained)
    assert trained[0] == trained[1]
    assert tasks(4).train(0) != tasks(3).train(0)


@pytest.mark.parametrize("code", [fast_agent, agent])
async def test_one_question_with_the_seed_of_the_task(code: Agent) -> None:
    async with fake_gateway() as gateway:
        (asked,) = await play(gateway, code)
    assert asked["messages"] == [{"role": "user", "content": "hello"}]
    assert (asked["max_tokens"], asked["seed"]) == (MAX_TOKENS, 7)


async def test_the_patient_agent_asks_again_after_a_wrong_answer() -> None:
    async with fake_gateway() as gateway:
        first, second = await play(gateway, patient_agent)
    assert second["messages"] == [
        {"role": "user", "content": "hello"}, {"role": "assistant", "content": "olleh"}, {"role": "user", "content": "hello"},
    ]
    assert (first["seed"], second["seed"]) == (7, 8)
