"""Weights made again from the log, and compared with what it says of them (R7).

Training again is the trainer's own way to recover (`trainer.recover.train_again`): the plans as they stand in the Steps, the trajectories
at their places. What it starts from is checked against the log first: the files of version 0, or a kept checkpoint by its Step's digests.

Invariants:
- weights are called equal where weights and optimizer have the digests of the log;
- they are called different only where they were made from equal ones under the numerics key that the log names, and not comparable
  under another key; what is made from others says nothing;
- nothing is written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from infra.audit.course import Made, course, in_force
from infra.audit.proof import Asked, Compared, Outcome, Report
from models.config import Qwen2Config
from models.qwen2 import Qwen2
from models.weights import fetch
from schemas.errors import EngineError, UsageError
from schemas.topics import TRAINING, TRAJECTORIES
from schemas.training import Run, Step, WeightVersion
from streams.log import Log
from trainer import checkpoint
from trainer.learning import Arithmetic
from trainer.recover import ARITHMETIC, train_again
from trainer.settings import TrainerSettings
from trainer.trainee import Bench, Trained

__all__ = ["Recomputation", "expired_steps", "recompute_log"]


Tell = Callable[[Compared, int], None]
"""Told each entry and the last step."""


async def recompute_log(log: Log, asked: Asked, tell: Tell) -> Report:
    """Make the weights of a log again.

    :raises UsageError: the log has no such steps, or a checkpoint is damaged.
    :raises EngineError: the files of version 0 are not what the log says.
    :raises BrokerError: the log cannot be read.
    """
    settings, made = await _read_training(log)
    newest = made[-1].step
    last = newest if asked.last is None else asked.last
    if not 1 <= asked.first <= last <= newest:
        raise UsageError(f"the log has steps 1 to {newest}, asked was for {asked.first} to {last}")
    bench = Bench()
    arithmetic = await bench.do(_arithmetic, made[0], settings)
    run = Recomputation(log, bench, arithmetic, made, asked.checkpoints or settings.checkpoint_dir, asked.threads)
    start, compared = await run.begin(asked.first), list[Compared]()
    async for each in run.run(last):
        compared.append(each)
        tell(each, last)
    return Report(start, compared)


async def _read_training(log: Log) -> tuple[TrainerSettings, list[Made]]:
    """What decides the arithmetic, as the run began, and the course of its weights."""
    async with log.follow_all(TRAINING) as reader:
        records = [entry.record for entry in await reader.read_to_end([0])]
    said = next((record.settings for record in records if isinstance(record, Run)), {})
    names = [*ARITHMETIC, "checkpoint_dir"]
    return TrainerSettings.model_validate({name: said[name] for name in names if name in said}), course(records)


def _arithmetic(initial: Made, settings: TrainerSettings) -> Arithmetic:
    assert initial.version is not None
    return Arithmetic(Qwen2(Qwen2Config.from_dict(initial.version.config)), settings)


def expired_steps(steps: Iterable[Step], starts: Mapping[int, int]) -> set[int]:
    """Steps of which a trajectory lies before the first offset left in its partition (`starts`)."""
    return {step.step for step in steps if any(place.offset < starts[place.partition] for place in step.plan.places)}


@dataclass(slots=True)
class _State:
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    updates: int


@dataclass
class Recomputation:
    """One run over the course. `threads`: of torch; None: as many as each entry of the course was made with."""

    log: Log
    bench: Bench
    arithmetic: Arithmetic
    course: list[Made]
    checkpoints: Path
    threads: int | None = None
    _at: int = -1
    _equal: set[int] = field(default_factory=set)
    _saved: dict[int, _State] = field(default_factory=dict)
    _kept: dict[int, checkpoint.Checkpoint] = field(default_factory=dict)
    _expired: set[int] = field(default_factory=set)

    async def begin(self, first: int) -> int:
        """Stand at the newest kept weights before step `first`; answers their step.

        :raises EngineError: the files of version 0 are not what the log says.
        :raises UsageError: the checkpoint is damaged.
        """
        self._kept = await self.bench.do(self._find_checkpoints)
        places = await self.log.broker.starts(await self.log.places(TRAJECTORIES))
        steps = (step for made in self.course for step in made.steps)
        self._expired = expired_steps(steps, {place.partition: offset for place, offset in places.items()})
        start = max((index for index in self._kept if self.course[index].step < first), default=0)
        if start in self._kept:
            await self._load(start)
        else:
            assert self.course[0].version is not None
            await self.bench.do(self.arithmetic.stand_at, self.course[0].version)
            self._arrive(0, equal=True)
        return self.course[start].step

    async def run(self, last: int) -> AsyncIterator[Compared]:
        """Everything after the start, up to step `last`, in the order of the course."""
        for index in range(self._at + 1, len(self.course)):
            if self.course[index].step <= last:
                yield await self._entry(index)

    async def _entry(self, index: int) -> Compared:
        made = self.course[index]
        if made.base is not None and not any(step.step in self._expired for step in made.steps) and await self._return_to(made.base):
            return await self._again(index)
        if index in self._kept:
            await self._load(index)
        return Compared(made.step, _number(made.version), "unproven", made.weights_sha256)

    async def _return_to(self, base: int) -> bool:
        """Stand at `base`: rather at the log's own weights than at others that were made here."""
        if base not in self._equal and base in self._kept:
            await self._load(base)
        elif base != self._at and base in self._saved:
            state = self._saved[base]
            self.arithmetic.learner.restore(state.weights, state.moments, state.updates)
            self._at = base
        return self._at == base

    async def _again(self, index: int) -> Compared:
        made = self.course[index]
        self.arithmetic.threads = self.threads or _threads(made.numerics)
        trained = [each async for _, each in train_again(self.log, self.arithmetic, self.bench, made.steps)]
        compared = await self.bench.do(self._compare, made, trained[-1])
        self._arrive(index, equal=compared.outcome == "equal")
        return compared

    def _compare(self, made: Made, trained: Trained) -> Compared:
        differ = _differences(made.numerics, trained.numerics)
        number, found, said = _number(made.version), trained.weights_sha256, made.weights_sha256
        if (found, trained.optimizer_sha256) == (said, made.optimizer_sha256):
            return Compared(made.step, number, "equal", said, found, differ)
        outcome: Outcome = "follows" if made.base not in self._equal else "not comparable" if differ else "different"
        if found == said:
            return Compared(made.step, number, outcome, made.optimizer_sha256, trained.optimizer_sha256, differ, what="optimizer")
        return Compared(made.step, number, outcome, said, found, differ, self._distance(made.version))

    def _distance(self, version: WeightVersion | None) -> float | None:
        if version is None:
            return None
        try:
            theirs = fetch(version)
        except EngineError:  # its files were removed: there is nothing to measure against
            return None
        ours = self.arithmetic.learner.weights()
        return max(float((ours[name].double() - tensor.double()).abs().max()) for name, tensor in theirs.items())

    def _find_checkpoints(self) -> dict[int, checkpoint.Checkpoint]:
        """Index in the course → the checkpoint with the digests of the log; one with another optimizer is not the log's."""
        places = in_force(self.course)
        committed = {step: self.course[index].weights_sha256 for step, index in places.items()}
        found = {places[each.state.step]: each for each in checkpoint.kept(self.checkpoints, committed)}
        return {index: each for index, each in found.items() if each.state.optimizer_sha256 == self.course[index].optimizer_sha256}

    async def _load(self, index: int) -> None:
        await self.bench.do(checkpoint.load, self._kept[index], self.arithmetic.learner)
        self._arrive(index, equal=True)

    def _arrive(self, index: int, *, equal: bool) -> None:
        """Stand at `index`; keep a copy where something later than the next entry was made from it."""
        self._at = index
        if equal:
            self._equal.add(index)
        if any(made.base == index for made in self.course[index + 2 :]):
            learner = self.arithmetic.learner
            self._saved[index] = _State(_copied(learner.weights()), _copied(learner.optimizer.moments()), learner.optimizer.updates)


def _differences(there: Mapping[str, str], here: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    names = sorted(name for name in there.keys() | here.keys() if there.get(name) != here.get(name))
    return {name: (there.get(name), here.get(name)) for name in names}


def _threads(numerics: Mapping[str, str]) -> int:
    said = numerics.get("threads", "")
    return int(said) if said.isdecimal() else 1


def _number(version: WeightVersion | None) -> int | None:
    return None if version is None else version.version


def _copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
