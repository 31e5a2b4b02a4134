"""The demo's plot: evaluate, train, lose a rollout worker and a trainer in mid-run, evaluate again, drain.

Every wait has a deadline and a cause (R10); every condition is read from the log, through the observer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import anyio.to_thread

from infra.crew.crew import Crew
from infra.demo.observer import Observer
from schemas.errors import NoProgress

SETTLE_S = 0.25
"""What a process had sent before it was stopped reaches the observer within this time."""
FREEZES = 400
MID_GENERATION = 3
"""So many requests of the worker must be under way when it is killed."""
EVALUATION_S = 120.0
STALL_S = 120.0
TAKEOVER_S = 60.0
DRAIN_S = 60.0


def trainer_deaths(steps: int, kills: int) -> list[int]:
    """After which steps the trainer dies: evenly over the last three eighths, when the lost worker is back."""
    return [steps * (5 * kills + 3 * kill) // (8 * kills) for kill in range(kills)]


@dataclass
class Told:
    """What the story did and saw: for the report."""

    kills_ms: list[int] = field(default_factory=list)
    victims_requests: int = 0
    trainer_kills: int = 0
    trainer_back_s: float | None = None
    """The longest of all kills."""


@dataclass
class Story:
    """One run of the demo, once the crew is ready. `victim` is the rollout worker that dies; the trainer dies `trainer_kills` times."""

    crew: Crew
    observer: Observer
    steps: int
    victim: str
    trainer: str
    trainer_kills: int = 1
    told: Told = field(default_factory=Told)

    async def run(self, *, faults: bool) -> None:
        """Play it from the first evaluation to the last.

        :raises NoProgress: something did not come within its deadline.
        """
        await self._until(lambda: bool(self.observer.evaluations.curve()), EVALUATION_S, "the evaluation before the first step")
        self.crew.say("evaluation", f"held-out reward before training: {self.observer.evaluations.curve()[0][1]:.3f}")
        if faults:
            await self._train_to(self.steps // 4)
            await self._lose_worker()
            for step in trainer_deaths(self.steps, self.trainer_kills):
                await self._train_to(step)
                await self._lose_trainer()
        await self._train_to(self.steps)
        await self._until(self._is_evaluated, EVALUATION_S, "the evaluation after the last step")
        await self._until(lambda: self.observer.open_sessions() == 0, DRAIN_S, "the last sessions to end")

    async def _train_to(self, step: int) -> None:
        """Wait for a step, as long as there is progress."""
        while (done := len(self.observer.steps)) < step:
            await self._until(lambda done=done: len(self.observer.steps) > done, STALL_S, f"step {done + 1}")  # type: ignore[misc]

    async def _lose_worker(self) -> None:
        self.told.victims_requests = await self._freeze_in_mid_generation()
        self.told.kills_ms.append(round(self.crew.kill(self.victim) * 1000))
        self.crew.say(self.victim, f"had {self.told.victims_requests} requests under way")
        await self._until(lambda: self.victim not in self.observer.owners.values(), TAKEOVER_S, "another node to take the partitions")
        self.crew.say("scheduler", "the other worker owns everything now")
        await self._train_to(min(self.steps, len(self.observer.steps) + max(2, self.steps // 12)))
        self.crew.restart(self.victim)

    async def _freeze_in_mid_generation(self) -> int:
        """Stop the victim at a moment at which enough of its requests run, so that the kill hits them; answers how many."""
        for _ in range(FREEZES):
            await self._until(lambda: len(self.observer.unfinished(self.victim)) >= MID_GENERATION, STALL_S, "requests to be under way")
            self.crew.freeze(self.victim)
            await anyio.sleep(SETTLE_S)
            if (running := len(self.observer.unfinished(self.victim))) >= MID_GENERATION:
                return running
            self.crew.thaw(self.victim)
        raise NoProgress(f"{self.victim} never had {MID_GENERATION} requests under way")

    async def _lose_trainer(self) -> None:
        steps, killed_s = len(self.observer.steps), time.monotonic()
        self.crew.kill(self.trainer)
        self.crew.restart(self.trainer)
        await anyio.to_thread.run_sync(self.crew.await_ready, [self.trainer])
        enough = min(steps + 2, self.steps)
        await self._until(lambda: len(self.observer.steps) >= enough, STALL_S, "the trainer to train again")
        back_s = time.monotonic() - killed_s
        self.told.trainer_kills += 1
        self.told.trainer_back_s = max(back_s, self.told.trainer_back_s or 0.0)
        self.crew.say(self.trainer, f"trains again, {back_s:.1f} s after it was killed")

    def _is_evaluated(self) -> bool:
        curve = self.observer.evaluations.curve()
        return bool(curve) and curve[-1][0] >= self.steps

    async def _until(self, condition: Callable[[], bool], deadline_s: float, cause: str) -> None:
        with anyio.move_on_after(deadline_s):
            while not condition():
                await self.observer.change()
            return
        raise NoProgress(f"waited {deadline_s:.0f} s for {cause}")
