"""Who plays: the product's own roles with settings that make a schedule short, and what of their surroundings is replaced.

Replaced are HTTP (`network`), the thread that trains (`trainee`), the model folder, and how often idle roles look around: nothing that
decides anything.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest.mock import patch

import aiohttp
import openai

import streams.log
from models.chat import NumberChat
from schemas.record import Record
from schemas.topics import Topic
from streams import codec
from streams.broker import Message
from streams.codec import Entry
from streams.service import Role
from tests.simulation import plugins
from tests.simulation.network import DirectApp, Network
from tests.simulation.process import Process
from tests.simulation.trainee import DigestTrainee, Disk, VirtualBench
from trainer import service as trainer
from trainer.settings import TrainerSettings
from workers.agents import service as agents
from workers.agents.decided import Decided
from workers.agents.sessions import Gateway
from workers.agents.settings import AgentsSettings
from workers.assembler import service as assembler
from workers.assembler.settings import AssemblerSettings
from workers.gateway import service as gateway
from workers.gateway.settings import GatewaySettings
from workers.intake import Intake
from workers.reward import service as reward
from workers.reward.settings import RewardSettings
from workers.rollout import service as rollout
from workers.rollout.settings import RolloutSettings
from workers.scheduler import service as scheduler
from workers.scheduler.settings import SchedulerSettings
from workers.source import service as source
from workers.source.settings import SourceSettings

if TYPE_CHECKING:
    from tests.simulation.world import World

PARTITIONS = 2
STEPS = 2
MEMBERS = 2
STALENESS_BOUND = 1
IDLE_POLL_S = 0.5
"""How often an owner looks for new grants where nothing else happens."""

SOURCE = SourceSettings.model_validate(
    {"tasks": "tests.simulation.plugins:tasks", "members": MEMBERS, "groups_per_step": 2, "staleness_bound": STALENESS_BOUND,
     "steps": STEPS, "evaluate_first": False, "evaluate_every": 2, "evaluate_last": False}
)  # fmt: skip
TRAINER = TrainerSettings.model_validate(
    {"steps": 1_000_000, "recovery_s": 0.3, "report_s": 1.0, "feed": {
        "groups_per_step": 2, "rules": {plugins.RULE: 1.0}, "staleness_bound": STALENESS_BOUND, "group_deadline_s": 20.0, "retry_s": 3.0,
        "drops_deadline_s": 1.0}}
)  # fmt: skip
AGENTS = AgentsSettings.model_validate(
    {"gateway_url": "http://gateway", "agent": "tests.simulation.plugins:agent", "concurrency": 8, "attempts": 2, "patience_s": 6.0,
     "episode_s": 12.0, "commit_s": 0.5}
)  # fmt: skip
ASSEMBLER = AssemblerSettings.model_validate({"idle_s": 2.5, "commit_s": 0.5})
SCHEDULER = SchedulerSettings.model_validate({"tick_s": 0.5})


def source_settings(seed: str) -> SourceSettings:
    """Tasks, and with them what agents do, are other ones in each schedule."""
    return SOURCE.model_copy(update={"seed": zlib.crc32(seed.encode())})


@cache
def rollout_settings(node: str) -> RolloutSettings:
    """Two to six tokens in less than a second. No two nodes cut spans at the same places, else one could not be told from another."""
    is_even = node.endswith("0")
    return RolloutSettings.model_validate(
        {"node": node, "engine": "paced", "paced_tokens_per_s": 8.0, "stream_tokens": 2 if is_even else 3,
         "flush_s": 0.5 if is_even else 0.3, "report_s": 0.8, "commit_s": 0.8}
    )  # fmt: skip


@cache
def gateway_settings(name: str) -> GatewaySettings:
    """Deadlines that a short schedule can reach."""
    return GatewaySettings.model_validate(
        {"name": name, "public_url": "http://gateway", "hold_s": 6.0, "answer_s": 3.0, "drain_s": 0.5}
    )


@cache
def reward_settings() -> RewardSettings:
    """A rule that answers at once."""
    return RewardSettings.model_validate({"rule": "tests.simulation.plugins:Rule", "commit_s": 0.5})


def trainer_role(world: World, disk: Disk) -> Role:
    """The trainer over digests."""
    bench = random.Random(f"{world.seed} bench")
    return trainer.role(TRAINER, lambda _: DigestTrainee(disk), lambda: VirtualBench(bench))


def company(world: World) -> list[Process]:
    """All processes of the pipeline; those of one slot come one after another."""
    disk = Disk()
    made: dict[str, Callable[[], Role]] = {
        "scheduler": lambda: scheduler.role(SCHEDULER), "source": lambda: source.role(source_settings(world.seed)),
        "trainer": lambda: trainer_role(world, disk),
        "assembler": lambda: assembler.role(ASSEMBLER), "reward": lambda: reward.role(reward_settings()),
        "agents": lambda: agents.role(AGENTS),
    }  # fmt: skip
    processes = [Process(name, name, make, world) for name, make in made.items()]
    processes += [rollout_process(world, name) for name in ("rollout-0", "rollout-1")]
    processes += [gateway_process(world, name) for name in ("gateway-0", "gateway-1")]
    return processes


def guest(world: World, role: str, number: int) -> Process:
    """One more process that shares its role's work."""
    name = f"{role}-guest-{number}"
    made: dict[str, Callable[[], Role]] = {
        "assembler": lambda: assembler.role(ASSEMBLER), "reward": lambda: reward.role(reward_settings()),
        "agents": lambda: agents.role(AGENTS),
    }  # fmt: skip
    if role in made:
        process = Process(name, name, made[role], world)
    else:
        process = rollout_process(world, name) if role == "rollout" else gateway_process(world, name)
    process.is_guest = True
    return process


def rollout_process(world: World, name: str) -> Process:
    """A rollout worker."""
    return Process(name, name, lambda: rollout.role(rollout_settings(name)), world)


def gateway_process(world: World, name: str) -> Process:
    """A gateway; its port breaks with it."""

    return Process(name, name, lambda: gateway.role(gateway_settings(name)), world, world.network.address(name))


def decode_once() -> Callable[[Topic, Message], Entry[Record]]:
    """The codec's `decode`, once for each message and not for each reader: records do not change."""
    known: dict[tuple[str, int, int], Entry[Record]] = {}

    def decode(topic: Topic, message: Message) -> Entry[Record]:
        key = (message.topic, message.partition, message.offset)
        if key not in known:
            known[key] = codec.decode(topic, message)
        return known[key]

    return decode


def _number_chat(folder: Path) -> NumberChat:
    """The language of the paced engine, without a file."""
    return NumberChat()


@contextmanager
def surroundings(network: Network) -> Iterator[None]:
    """Replace what the module's docstring names."""

    @asynccontextmanager
    async def open_runner(settings: AgentsSettings, intake: Intake, decided: Decided) -> AsyncIterator[agents.Runner]:
        http = cast("aiohttp.ClientSession", network)
        client = cast("openai.AsyncOpenAI", None)
        calls = Gateway(http, settings.gateway_url, settings.patience_s)
        yield agents.Runner(settings, intake, decided, http, client, [plugins.agent], calls)

    with ExitStack() as stack:
        for module, name, value in (
            (gateway, "listening", network.listening), (gateway, "serve_http", network.serve), (gateway, "App", DirectApp),
            (gateway, "load_chat", _number_chat), (reward, "load_chat", _number_chat),
            (agents, "open_runner", open_runner), (rollout, "POLL_S", IDLE_POLL_S), (assembler, "READ_S", IDLE_POLL_S),
            (reward, "READ_S", 2 * IDLE_POLL_S), (agents, "POLL_S", 2 * IDLE_POLL_S), (streams.log, "decode", decode_once()),
        ):  # fmt: skip
            stack.enter_context(patch.object(module, name, value))
        yield
