"""One schedule: the whole pipeline on one virtual loop, its faults, the calm after them, and the verdict.

Invariants: a schedule is a function of its seed and of the faults that are kept; faults end before the calm begins, and whatever is still
not at its end CALM_S later will never be: that is a violation, too.
"""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from schemas.node import Control
from schemas.topics import NODES, SESSIONS
from streams.codec import encode
from streams.topics import ensure_topics
from tests.simulation import cast, faults
from tests.simulation.audit import audited
from tests.simulation.chance import determined
from tests.simulation.cluster import Cluster
from tests.simulation.invariants import violations_of
from tests.simulation.network import Network
from tests.simulation.process import NAMESPACE, Process
from tests.simulation.reading import Reading
from tests.simulation.virtual_loop import Deadlock, Livelock, run_virtually

CALM_S = 90.0
"""How long everything may take to come to its end after the last fault, virtual seconds."""
LOOK_S = 1.0
RESTART_S = 0.7
AUDITED_ONE_IN = 20
"""An audit takes about a third of the time of a schedule."""


@dataclass
class World:
    """What a schedule consists of. Made in its loop."""

    seed: str
    tasks: TaskGroup
    cluster: Cluster = field(default_factory=Cluster)
    struck: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.network = Network(self.cluster, NAMESPACE + SESSIONS.name, self.seed, self.strike)
        self.reading = Reading(NAMESPACE)
        self._processes = {process.name: process for process in cast.company(self)}
        self._guests = 0

    def strike(self, kind: str) -> None:
        """A fault of this kind struck."""
        self.struck[kind] += 1

    def process(self, slot: str) -> Process:
        """The process of a slot that is awake, or the first one."""
        found = self._of(slot)
        return next((process for process in found if process.is_awake), found[0])

    def second(self, process: Process) -> Process:
        """Another process for the same slot."""
        name = process.slot if process.name != process.slot else f"{process.slot}-b"
        if name not in self._processes:
            self._processes[name] = Process(name, process.slot, process.made, self)
        return self._processes[name]

    def guest(self, role: str) -> Process:
        """One more process of a role that shares its work."""
        self._guests += 1
        process = cast.guest(self, role, self._guests)
        self._processes[process.name] = process
        return process

    def ended(self, process: Process) -> None:
        """A process ended: its supervisor starts it again, unless another one does its work."""
        self.tasks.start_soon(self._restart, process)

    async def pause(self, seconds: float) -> None:
        """An operator pauses the namespace for a while."""
        self.strike("pause")
        self._control("pause")
        await anyio.sleep(seconds)
        self._control("resume")

    async def run(self, drawn: list[faults.Fault]) -> None:
        """All of it."""
        await ensure_topics(self.cluster, NAMESPACE, cast.PARTITIONS)
        for process in list(self._processes.values()):
            process.start()
        await faults.strike_all(self, drawn)
        self._calm_down()
        with anyio.move_on_after(CALM_S) as limit:
            while not self._is_settled():
                self._fill_slots()
                await anyio.sleep(LOOK_S)
        if limit.cancelled_caught:
            self.violations.append(f"not at its end {CALM_S:.0f} s after the last fault: {self.reading.unsettled()[:3]}")
        for process in self._processes.values():
            if process.life is not None:
                process.life.connection.cut()
                process.life = None  # a group cancels its tasks in the order of their addresses: their ends are no part of the journal
        self.tasks.cancel_scope.cancel()

    def _of(self, slot: str) -> list[Process]:
        return [process for process in self._processes.values() if process.slot == slot]

    async def _restart(self, process: Process) -> None:
        await anyio.sleep(RESTART_S)
        if not process.is_guest and not any(other.is_awake for other in self._of(process.slot)):
            process.start()

    def _calm_down(self) -> None:
        self.cluster.note("calm")
        for process in self._processes.values():
            process.thaw()
            if process.life is not None:
                process.life.connection.calm_down()

    def _fill_slots(self) -> None:
        for process in list(self._processes.values()):
            if not process.is_guest and not any(other.is_awake for other in self._of(process.slot)):
                process.start()

    def _is_settled(self) -> bool:
        """Whether everything that was begun has its end. Read only once it may be: reading costs more than waiting."""
        if self.cluster.steps < cast.STEPS:
            return False
        self.reading.take(self.cluster, self.cluster.places)
        return not self.reading.unsettled()

    def _control(self, command: str) -> None:
        record = Control(command=command, reason="simulation")  # type: ignore[arg-type]
        self.cluster.append(encode(NAMESPACE + NODES.name, 0, record))


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a schedule came to."""

    seed: str
    events: int
    struck: Counter[str]
    violations: list[str]
    journal: tuple[str, ...] = ()


def play(seed: str, kept: Collection[int] | None = None, *, with_journal: bool = False, with_audit: bool = False) -> Outcome:
    """Run the schedule of a seed, with all of its faults or with the numbers that are kept. Some seeds are audited in any case."""
    worlds: list[World] = []
    drawn = [fault for fault in faults.draw(seed) if kept is None or fault.number in kept]

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            world = World(seed, tasks)
            worlds.append(world)
            with cast.surroundings(world.network):
                await world.run(drawn)
                await anyio.sleep_forever()

    with determined(seed):
        try:
            run_virtually(main)
        except (Deadlock, Livelock) as error:
            worlds[0].violations.append(repr(error))
    world = worlds[0]
    world.reading.take(world.cluster, world.cluster.places)
    found = [*world.violations, *violations_of(world.reading, world.network.shown, cast.STALENESS_BOUND)]
    if with_audit or zlib.crc32(seed.encode()) % AUDITED_ONE_IN == 0:
        found += audited(world.cluster, NAMESPACE, cast.STALENESS_BOUND)
    journal = tuple(map(str, world.cluster.journal)) if with_journal else ()
    return Outcome(seed, len(world.cluster.journal), world.struck, found, journal)
