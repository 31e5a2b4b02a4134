"""An agent with prompts as long as it is told, and the memory that processes took meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import aiohttp

from infra.crew.member import Member
from schemas.identity import SessionId
from tests.flow.seen import Key


async def converse(url: str, prompts: Sequence[int], max_tokens: int, timeout_s: float) -> tuple[Key, list[str]]:
    """One session of the paced engine's language: a turn of so many tokens for each of `prompts`. Answers where it stands in `sessions`,
    and what the agent was told."""
    answers: list[str] = []
    messages: list[dict[str, str]] = []
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=timeout_s)) as http:
        async with http.post("/v1/sessions", json={}) as response:
            name = (await response.json())["id"]
        for count in prompts:
            messages.append({"role": "user", "content": "7 " * count})
            async with http.post(f"/s/{name}/v1/chat/completions", json={"messages": messages, "max_tokens": max_tokens}) as response:
                assert response.status == 200, await response.text()
                answers.append((await response.json())["choices"][0]["message"]["content"])
            messages.append({"role": "assistant", "content": answers[-1]})
        async with http.post(f"/v1/sessions/{name}/close", json={}) as response:
            assert response.status == 200, await response.text()
    place = SessionId.parse(name)
    return Key(place.partition, place.offset), answers


def peaks_bytes(members: Mapping[str, Member]) -> dict[str, int]:
    """The most memory that each running process has had so far (its resident set), by member."""
    return {name: _peak_bytes(member.process.pid) for name, member in members.items() if member.process is not None and member.is_alive}


def _peak_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
