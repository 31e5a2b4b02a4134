"""Everything dies at once, Kafka too, while agents wait in mid-sentence. `up` again: each agent gets its answer, and the very tokens that
stood in the log.

The row has a run folder of its own: `seamlessflow up` reads a settings file, starts the broker, and everything else. The agents are plain
`openai` clients, which try again by themselves.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx
from openai import AsyncOpenAI

from infra.audit.log import KafkaLog
from infra.audit.verify import Audit, AuditOptions
from infra.broker.cluster import LocalKafka
from infra.broker.ports import choose_ports
from infra.broker.process import Process, await_death, end_all, spawn
from infra.crew.roll import read_roll
from models.chat import NumberChat
from schemas.arrays import unpack_i4
from schemas.identity import SessionId
from schemas.session import Claim, Request
from schemas.span import Span
from schemas.topics import SESSIONS
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics
from tests.chaos.row import Happened, row
from tests.chaos.stage import Stage
from tests.flow.harness import publish

NAMESPACE = "everything."
PARTITIONS = 4
TOKENS_PER_S = 10
BUDGETS = (60, 80, 200)
"""Tokens that each agent asks for: the short answers end before their agents have called again, the long ones are still under way then."""
DEADLINE_S = 180.0
LOOK_S = 0.1
ENOUGH = 5
"""Tokens of each answer that stand in the log when everything dies."""

SETTINGS = """
[connection]
namespace = "{namespace}"
[up]
rollouts = 2
trainer = false
agents = false
model_dir = "{model}"
[gateway]
port = {port}
[rollout]
engine = "paced"
paced_tokens_per_s = {tokens_per_s}
flush_s = 0.2
[source]
steps = 0
evaluate_first = false
evaluate_last = false
evaluate_every = 0
"""


@dataclass
class House:
    """What `up` runs in a folder. Ports stay the same from one `up` to the next."""

    folder: Path
    port: int
    crews: list[Process] = field(default_factory=list)

    @property
    def kafka(self) -> LocalKafka:
        return LocalKafka(self.folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def log(self) -> Log:
        return Log(KafkaBroker(self.kafka.bootstrap, client_id="everything"), NAMESPACE, "test")

    def up(self) -> None:
        """Start `up`, without waiting for anything."""
        flags = ["--config", str(self.folder / "seamlessflow.toml"), "--run-dir", str(self.folder)]
        self.crews.append(spawn([sys.executable, "-m", "infra.cli.main", "up", *flags], self.folder / "up.log"))

    def processes(self) -> list[Process]:
        """All that run: the broker, `up`, the roles."""
        roll, state = read_roll(self.folder), self.kafka.state
        members = [] if roll is None else list(roll.members.values())
        return [process for process in [*self.crews, *members, *(state.running() if state else [])] if process.is_alive()]

    def kill(self) -> int:
        """SIGKILL to every process, and wait until they are gone; answers how many died."""
        doomed = self.processes()
        for process in doomed:
            process.signal(signal.SIGKILL)
        await_death(doomed, deadline_s=30.0)
        return len(doomed)


@contextmanager
def house(folder: Path) -> Iterator[House]:
    """A folder with settings, a model, and topics on a broker of its own. Leaving ends what runs."""
    (ports,) = choose_ports(1)
    (folder / "model").mkdir(parents=True)
    NumberChat().save(folder / "model")
    text = SETTINGS.format(namespace=NAMESPACE, model=folder / "model", port=ports.client, tokens_per_s=TOKENS_PER_S)
    (folder / "seamlessflow.toml").write_text(text, encoding="utf-8")
    built = House(folder, ports.client)
    try:
        built.kafka.start()
        yield built
    finally:
        end_all(built.processes(), grace_s=10.0)


@dataclass
class Waiting:
    """One agent: its session, and the answer when it has come."""

    session: SessionId
    budget: int
    answer: Any = None


async def open_session(url: str, budget: int) -> Waiting:
    """A session, as soon as the gateway serves."""
    async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
        while True:
            try:
                opened = await http.post(f"{url}/v1/sessions", json={})
            except httpx.TransportError:
                await anyio.sleep(LOOK_S)
                continue
            if opened.status_code == 201:
                return Waiting(SessionId.parse(opened.json()["id"]), budget)
            await anyio.sleep(LOOK_S)


async def ask(url: str, waiting: Waiting) -> None:
    """One call by a client that tries again for as long as it takes."""
    async with AsyncOpenAI(base_url=f"{url}/s/{waiting.session}/v1", api_key="none", max_retries=100, timeout=DEADLINE_S) as client:
        messages: Any = [{"role": "user", "content": "1 2 3"}]
        waiting.answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=waiting.budget)


@asynccontextmanager
async def agents(url: str) -> AsyncIterator[list[Waiting]]:
    """Agents that wait for one answer each; leaving waits until all have theirs."""
    crowd = [await open_session(url, budget) for budget in BUDGETS]
    async with anyio.create_task_group() as tasks:
        for waiting in crowd:
            tasks.start_soon(ask, url, waiting)
        yield crowd


@dataclass
class Record:
    """What the log holds of one session: its Requests by offset, and by request the tokens under each epoch."""

    requests: list[int] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)


async def recorded(log: Log, crowd: Sequence[Waiting]) -> list[Record]:
    """Read the sessions of these agents: spans in log order, those of passed owners left out."""
    found = {(each.session.partition, each.session.offset): Record() for each in crowd}
    epochs: Counter[int] = Counter()
    async with log.follow_all(SESSIONS) as reader:
        for entry in await reader.read_to_end(range(PARTITIONS)):
            if isinstance(entry.record, Claim):
                epochs[entry.partition] = max(epochs[entry.partition], entry.record.epoch)
            elif isinstance(entry.record, Request):
                found[entry.partition, entry.record.session].requests.append(entry.offset)
            elif isinstance(entry.record, Span) and entry.record.epoch == epochs[entry.partition]:
                tokens = found[entry.partition, entry.record.session].tokens.setdefault(entry.record.request, [])
                assert entry.record.start == len(tokens), "a span that does not meet the tokens before"
                tokens += unpack_i4(entry.record.tokens)
    return list(found.values())


async def in_mid_sentence(log: Log, crowd: Sequence[Waiting]) -> None:
    """Wait until each answer has begun."""
    while True:
        records = await recorded(log, crowd)
        if all(len(each.requests) == 1 and len(each.tokens.get(each.requests[0], [])) >= ENOUGH for each in records):
            return
        await anyio.sleep(LOOK_S)


def verdict_of(built: House) -> str:
    """What the audit finds; nothing where all is well."""
    with KafkaLog(built.kafka.bootstrap, NAMESPACE) as log:
        return "\n".join(map(str, Audit(log, AuditOptions(weights=False)).run().violations))


@row("kill everything, the broker too, in mid-sentence; up again", scene="bare")
async def everything_dies(stage: Stage) -> Happened:
    with house(stage.folder / "everything") as built:
        await ensure_topics(built.log().broker, NAMESPACE, PARTITIONS)
        await publish(built.log())
        built.up()
        async with agents(built.url) as crowd:
            await in_mid_sentence(built.log(), crowd)
            killed, died_at = await anyio.to_thread.run_sync(built.kill), time.monotonic()
            early = sum(each.answer is not None for each in crowd)
            await anyio.to_thread.run_sync(built.kafka.start)
            before = await recorded(built.log(), crowd)
            built.up()
        stall_s = round(time.monotonic() - died_at, 1)
        after = await recorded(built.log(), crowd)
        violations = await anyio.to_thread.run_sync(verdict_of, built)
    assert not violations, violations
    return judged(crowd, before, after, "" if early else f"{killed} processes died by SIGKILL", stall_s)


def judged(crowd: Sequence[Waiting], before: Sequence[Record], after: Sequence[Record], fired: str, stall_s: float) -> Happened:
    """Each agent has one Request and its whole answer, which begins with the tokens that stood in the log when everything died."""
    chat, lost, twice = NumberChat(), 0, 0
    for waiting, old, new in zip(crowd, before, after, strict=True):
        (first, *others) = new.requests
        tokens, stood = new.tokens[first], old.tokens[first]
        answer = waiting.answer.choices[0].message.content
        is_whole = len(tokens) == waiting.budget and tokens[: len(stood)] == stood and len(stood) >= ENOUGH
        lost += not (is_whole and answer == chat.decode(tokens))
        twice += len(others)
    said = ", ".join(f"{len(old.tokens[old.requests[0]])} of {each.budget}" for old, each in zip(before, crowd, strict=True))
    return Happened(fired and f"{fired}; tokens that stood: {said}", stall_s=stall_s, lost=lost, twice=twice)
