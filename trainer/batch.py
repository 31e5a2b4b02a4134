"""From a plan and its trajectories to tensors: one packed sequence per micro-batch, nothing padded.

Invariants:
- rows stand one after another in the order of the plan, positions begin at 0 in each (`trainer.attention` keeps them apart);
- a trained token is predicted from the place before it in its own row; its μ, version and temperature are those recorded with it;
- a row is fed up to its last predictor: its last token is only a target;
- tensors are a function of plan and trajectories: no default, no clock, no order of a dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from schemas.errors import CorruptRecord
from schemas.training import Plan, Row
from schemas.trajectory import Trajectory

__all__ = ["MicroBatch", "micro_batches"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """T tokens of several rows, n of them trained."""

    tokens: Tensor
    """int64[1, T]."""
    positions: Tensor
    """int64[1, T], from 0 in each row."""
    lengths: list[int]
    """Tokens per row, one less than the row has; their sum is T."""
    predictors: Tensor
    """int64[n]: the index in T whose output predicts the trained token, one before it."""
    targets: Tensor
    """int64[n]: ids of the trained tokens."""
    behaviour: Tensor
    """float32[n]: recorded logprobs (nats) of the distribution that was sampled."""
    temperature: Tensor
    """float32[n], above 0."""
    advantage: Tensor
    """float32[n]."""
    version: Tensor
    """int32[n]."""

    @property
    def trained(self) -> int:
        """n."""
        return self.targets.numel()


@dataclass(frozen=True, slots=True)
class _Sequence:
    tokens: NDArray[np.int32]
    behaviour: NDArray[np.float32]
    temperature: NDArray[np.float32]
    version: NDArray[np.int32]
    trained: NDArray[np.int64]
    advantage: float


def micro_batches(plan: Plan, trajectories: Sequence[Trajectory]) -> list[MicroBatch]:
    """All micro-batches of a plan, on the CPU.

    :param trajectories: in the order of `plan.places`.
    :raises CorruptRecord: the plan names a session, a node or a token that the trajectories do not have, or trains a given or greedy one.
    """
    if len(trajectories) != len(plan.places):
        raise CorruptRecord(f"the plan has {len(plan.places)} places, {len(trajectories)} trajectories were given")
    for place, trajectory in zip(plan.places, trajectories, strict=True):
        if trajectory.session != place.session:
            raise CorruptRecord(f"trajectory {place.partition}-{place.offset} is of session {trajectory.session}, not {place.session}")
    sequences = [_sequence(row, trajectories[row.place]) for row in plan.rows]
    return [_packed([sequences[index] for index in rows]) for rows in plan.micro_batches]


def _sequence(row: Row, trajectory: Trajectory) -> _Sequence:
    nodes = [trajectory.nodes[index] for index in row.nodes]
    parts = list(zip(nodes, row.stops, strict=True))
    mask = np.concatenate([np.frombuffer(node.mask, "u1")[:stop] for node, stop in parts])
    temperature = np.concatenate([np.full(stop, node.sampling.temperature, "<f4") for node, stop in parts])
    ranges = [np.arange(begin, end) for begin, end in zip(row.train_from, row.train_to, strict=True)]
    trained = np.concatenate(ranges) if ranges else np.zeros(0, np.int64)
    _require_trainable(row, trained, mask, temperature)
    return _Sequence(
        tokens=np.concatenate([np.frombuffer(node.tokens, "<i4")[:stop] for node, stop in parts]),
        behaviour=np.concatenate([np.frombuffer(node.logprobs, "<f4")[:stop] for node, stop in parts])[trained],
        temperature=temperature[trained],
        version=np.concatenate([np.frombuffer(node.versions, "<i4")[:stop] for node, stop in parts])[trained],
        trained=trained,
        advantage=row.advantage,
    )


def _require_trainable(row: Row, trained: NDArray[np.int64], mask: NDArray[np.uint8], temperature: NDArray[np.float32]) -> None:
    if mask.size != sum(row.stops):
        raise CorruptRecord(f"row of nodes {row.nodes} stops at {row.stops}, beyond a node's end")
    if trained.size and (trained.min() < 1 or trained.max() >= mask.size):
        raise CorruptRecord(f"row of nodes {row.nodes} trains tokens outside of 1 … {mask.size - 1}")
    if not (mask[trained] == 1).all() or not (temperature[trained] > 0).all():
        raise CorruptRecord(f"row of nodes {row.nodes} trains a token that was not sampled from a distribution")


def _packed(sequences: list[_Sequence]) -> MicroBatch:
    lengths = [sequence.tokens.size - 1 for sequence in sequences]
    starts = np.cumsum([0, *lengths[:-1]])
    predictors = np.concatenate([start + sequence.trained - 1 for start, sequence in zip(starts, sequences, strict=True)])
    advantage = np.concatenate([np.full(sequence.trained.size, sequence.advantage, np.float32) for sequence in sequences])
    return MicroBatch(
        tokens=_int64([sequence.tokens[:-1] for sequence in sequences])[None],
        positions=torch.from_numpy(np.concatenate([np.arange(length) for length in lengths]))[None],
        lengths=lengths,
        predictors=torch.from_numpy(predictors),
        targets=_int64([sequence.tokens[sequence.trained] for sequence in sequences]),
        behaviour=torch.from_numpy(np.concatenate([sequence.behaviour for sequence in sequences])),
        temperature=torch.from_numpy(np.concatenate([sequence.temperature for sequence in sequences])),
        advantage=torch.from_numpy(advantage),
        version=torch.from_numpy(np.concatenate([sequence.version for sequence in sequences])),
    )


def _int64(parts: list[NDArray[np.int32]]) -> Tensor:
    return torch.from_numpy(np.concatenate(parts).astype(np.int64))
