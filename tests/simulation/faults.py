"""What goes wrong in a schedule: drawn from its seed before it begins, so that any of it can be left out when a failure is shrunk.

A fault is asked for at a time and strikes at the next call that it is about; only what struck is counted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from tests.simulation.connection import COMMIT, COMMITTED, OFFSETS, Trap
from tests.simulation.scenarios import SCENARIOS, Likely

if TYPE_CHECKING:
    from tests.simulation.world import World

SCENARIO_MARK = "~"
"""Between a schedule's number and the scenario that it plays."""
CHAOS_S = 5.5
"""Faults begin within so many seconds."""

ROLES = ("scheduler", "source", "trainer", "assembler", "reward", "agents", "rollout-0", "rollout-1", "gateway-0", "gateway-1")
FROZEN = (*ROLES, "rollout-0", "rollout-1", "assembler")
READERS = ("rollout-0", "rollout-1", "gateway-0", "gateway-1", "assembler", "reward", "scheduler", "trainer", "source")
COMMITTERS = ("source", "trainer", "trainer", "scheduler")
SUCCEEDED = ("scheduler", "source", "trainer", "assembler", "reward")
"""A frozen process of these roles gets a successor that is another process."""

RECORDS = {
    "rollout": ("Claim", "Claim", "Span", "Span", "Span"), "gateway": ("Open", "Request", "Request", "Close"),
    "assembler": ("Trajectory", "Trajectory", "Close"), "reward": ("Score",), "scheduler": ("Tick", COMMIT), "trainer": (COMMIT, COMMITTED),
    "source": (COMMIT, COMMITTED), "agents": ("",),
}  # fmt: skip
"""What a role sends, by how much there is to break."""

SEND_FAULTS = ("send unanswered", "sends lost", "sends late", "sends slow")
SENDERS = ("rollout-0", "rollout-1", "rollout-0", "rollout-1", "gateway-0", "gateway-1", "assembler", "assembler", "reward", "scheduler")
COMMIT_FAULTS = ("commit unanswered", "commit lost", "commit late")

WEIGHTS = {
    "kill": 10, "freeze": 10, "send unanswered": 4, "sends lost": 4, "sends late": 6, "sends slow": 4, "commit unanswered": 2,
    "commit lost": 2, "commit late": 2, "offsets unanswered": 4, "reads stale": 3, "reads held": 2, "silent": 2, "half cut": 5,
    "broker away": 1, "clock skewed": 1, "join": 2, "leave": 2, "pause": 1,
}  # fmt: skip


KINDS = (
    *(f"{kind} {role}" for kind in ("kill", "freeze") for role in RECORDS),
    *(kind for kind in WEIGHTS if kind not in ("kill", "freeze")),
    "agent cancels", "agent fails",
)  # fmt: skip
"""All that is counted. The last two are what agents do of themselves (`plugins`)."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`kind` at `at_s` seconds after the start, to `target`, for `for_s` seconds. `about`, `calls`, `is_after`: as `Trap`."""

    number: int
    kind: str
    at_s: float
    target: str
    for_s: float
    about: str
    calls: int
    is_after: bool

    def trap(self) -> Trap:
        """What waits for it to strike."""
        return Trap(self.kind, self.about, self.calls, self.for_s, self.is_after and self.kind in ("kill", "freeze"))


def draw(seed: str) -> list[Fault]:
    """The faults of a schedule, in their order; those of a scenario, where the seed names one, and a few others."""
    chance = random.Random(f"{seed} faults")
    scenario = seed.partition(SCENARIO_MARK)[2]
    kinds = chance.choices(list(WEIGHTS), weights=list(WEIGHTS.values()), k=chance.randint(0, 3) if scenario else chance.randint(5, 14))
    drawn = [_fault(chance, kind, chance.uniform(0.1, CHAOS_S)) for kind in kinds]
    drawn += _of_scenario(chance, SCENARIOS[scenario]) if scenario else []
    return [replace(fault, number=number) for number, fault in enumerate(sorted(drawn, key=lambda fault: fault.at_s))]


def _of_scenario(chance: random.Random, scenario: tuple[Likely, ...]) -> list[Fault]:
    """`rollout-0` and `rollout-1` change places in half of the schedules."""
    others = {"rollout-0": "rollout-1", "rollout-1": "rollout-0"} if chance.random() < 0.5 else {}
    return [
        Fault(
            0, each.kind, chance.uniform(each.from_s, each.to_s), others.get(each.target, each.target),
            chance.uniform(each.least_s, each.most_s), each.about, chance.choice(each.calls), each.is_after,
        )
        for each in scenario if chance.random() < each.share
    ]  # fmt: skip


def _fault(chance: random.Random, kind: str, at_s: float) -> Fault:
    target = chance.choice(_targets(kind))
    about = _about(kind) or chance.choice(RECORDS[target.partition("-")[0]])
    if kind in ("kill", "freeze") and chance.random() < 0.3:
        about = ""
    calls = chance.randrange(12) if not about else chance.choice((0, 0, 1, 3))
    return Fault(0, kind, at_s, target, chance.uniform(0.4, 5.0), about, calls, chance.random() < 0.5)


def _targets(kind: str) -> tuple[str, ...]:
    if kind in SEND_FAULTS:
        return SENDERS
    if kind in COMMIT_FAULTS:
        return COMMITTERS
    if kind in ("reads stale", "reads held"):
        return READERS
    if kind in ("offsets unanswered", "silent", "half cut"):
        return ("rollout-0", "rollout-1")
    return FROZEN if kind == "freeze" else ROLES


def _about(kind: str) -> str:
    """What a kind is always about; empty: a record that its target sends."""
    if kind in COMMIT_FAULTS:
        return COMMIT
    return OFFSETS if kind == "offsets unanswered" else ""


async def strike_all(world: World, faults: list[Fault]) -> None:
    """Let them happen, each at its time; ends when the last one is over."""
    begin_s = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        for fault in faults:
            await anyio.sleep_until(begin_s + fault.at_s)
            tasks.start_soon(_strike, world, fault)


async def _strike(world: World, fault: Fault) -> None:
    match fault.kind:
        case "kill":
            await _kill(world, fault)
        case "freeze":
            await _freeze(world, fault)
        case "leave":
            await _leave(world, fault)
        case "join":
            await _join(world, fault)
        case "pause":
            await world.pause(fault.for_s)
        case "broker away":
            world.strike(fault.kind)
            world.cluster.leave_for_a_while(fault.for_s / 3)
            await anyio.sleep(fault.for_s / 2)
        case "clock skewed":
            world.strike(fault.kind)
            world.cluster.skew_s += 3600.0 if fault.calls % 2 else -3600.0
        case _:
            _disturb(world, fault)
            await anyio.sleep(fault.for_s if SCENARIO_MARK in world.seed else 0.0)  # so long a trap of a scenario stays where it is


def _disturb(world: World, fault: Fault) -> None:
    """A fault of a connection."""
    process = world.process(fault.target)
    if process.life is None:
        return
    connection = process.life.connection
    if fault.kind == "reads stale":
        process.struck(fault.kind)
        connection.see_no_further(fault.for_s)
    elif fault.kind == "reads held":
        process.struck(fault.kind)
        connection.hold_reads(fault.for_s)
    elif fault.kind == "silent":
        process.struck(fault.kind)
        connection.silent_until_s = anyio.current_time() + fault.for_s
    elif fault.kind == "half cut":  # it hears nothing and is not heard of, and goes on working
        process.struck(fault.kind)
        connection.silent_until_s = anyio.current_time() + fault.for_s
        connection.hold_reads(fault.for_s)
    else:
        connection.traps.append(fault.trap())


async def _kill(world: World, fault: Fault) -> None:
    """Where its moment does not come, it dies all the same; either way it is started again."""
    process = world.process(fault.target)
    life = process.life
    if life is None:
        return
    life.connection.traps.append(fault.trap())
    await anyio.sleep(fault.for_s / 3)
    if process.life is life:
        process.kill()
    process.start()


async def _freeze(world: World, fault: Fault) -> None:
    """As `_kill`; some get a successor, and all thaw."""
    process = world.process(fault.target)
    life = process.life
    if life is None or life.is_frozen:
        return
    life.connection.traps.append(fault.trap())
    await anyio.sleep(fault.for_s / 3)
    if process.life is life:
        process.freeze()
    if process.role in SUCCEEDED:
        world.second(process).start()
    await anyio.sleep(fault.for_s)
    process.thaw()


async def _leave(world: World, fault: Fault) -> None:
    process = world.process(fault.target)
    process.stop()
    await anyio.sleep(fault.for_s / 3)
    process.start()


async def _join(world: World, fault: Fault) -> None:
    """One more process of a role that shares its work, for a while."""
    process = world.guest(("rollout", "assembler", "rollout", "reward", "agents", "gateway")[fault.calls % 6])
    world.strike("join")
    process.start()
    await anyio.sleep(fault.for_s)
    process.stop()
