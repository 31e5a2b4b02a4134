"""Which weights came into force, in what order, and what each was made from, as `training` says. Pure; no torch.

Almost always a Step makes its weights from those before it. Where a trainer came back and its numerics gave other weights than the log's,
a version of its own says so: made by training the Steps after an earlier one once more, it is in force from then on.

Invariants: the first is version 0; each other one names a base before it, or none where the log does not tell it; the last one of a step
is the one in force after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from schemas.errors import LogError
from schemas.record import Record
from schemas.training import Step, WeightVersion

__all__ = ["Made", "course", "in_force"]


@dataclass(frozen=True, slots=True)
class Made:
    """Weights after `step`, published as `version` (None: not published): `steps` trained from the weights at index `base` of the course.

    `optimizer_sha256` is empty, `steps` are none and `base` is None for version 0.
    """

    step: int
    version: WeightVersion | None
    weights_sha256: str
    optimizer_sha256: str
    numerics: Mapping[str, str]
    base: int | None
    steps: tuple[Step, ...]


def course(records: Iterable[Record]) -> list[Made]:
    """All weights in the order in which they came into force.

    :raises LogError: no version 0 was announced.
    """
    known = list(records)
    versions = {each.version: each for each in known if isinstance(each, WeightVersion)}
    steps = {each.step: each for each in known if isinstance(each, Step)}
    if 0 not in versions:
        raise LogError("no trainer has begun a run here: version 0 is not announced")
    found = [_initial(versions[0])]
    for record in known:
        if isinstance(record, Step):
            found.append(_of_step(record, versions, in_force(found)))
        elif isinstance(record, WeightVersion) and record.step in steps and steps[record.step].published != record.version:
            found.append(_again(record, steps, in_force(found)))
    return found


def in_force(found: Iterable[Made]) -> dict[int, int]:
    """Step → index of the weights in force after it."""
    return {made.step: index for index, made in enumerate(found)}


def _initial(version: WeightVersion) -> Made:
    return Made(0, version, version.weights_sha256, "", {}, None, ())


def _of_step(step: Step, versions: Mapping[int, WeightVersion], before: Mapping[int, int]) -> Made:
    version = None if step.published is None else versions.get(step.published)
    return Made(step.step, version, step.weights_sha256, step.optimizer_sha256, step.numerics, before.get(step.step - 1), (step,))


def _again(version: WeightVersion, steps: Mapping[int, Step], before: Mapping[int, int]) -> Made:
    last = version.step or 0
    base = None if version.again_from is None else before.get(version.again_from)
    again = () if version.again_from is None else tuple(steps[number] for number in range(version.again_from + 1, last + 1))
    return Made(last, version, version.weights_sha256, version.optimizer_sha256, version.numerics, base, again)
