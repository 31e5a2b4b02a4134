"""Batched decoding, one step at a time: no threads, no event loop, no clock.

Invariants:
- a step gives each running row one token; rows that wait are admitted, many in one forward pass, and get their first token in it;
- a token is drawn from softmax(logits / temperature) by inverting its cumulative distribution (float64) at the request's own number
  for that index (`draws`): what else is in the batch plays no part, beyond rounding in the last bit of a logit;
- the logprob of a token is that of the distribution it was drawn from, float32 nats. Temperature 0 takes the most likely token, and its
  logprob is that of the untempered distribution;
- new weights send every running row back to be admitted again: its cache is computed anew from all its tokens (mode `exact`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.qwen2 import Qwen2
from models.weights import require_fit
from schemas.span import Finish
from workers.rollout.engines.base import Emission, Job, JobId
from workers.rollout.engines.cache import Cache
from workers.rollout.engines.draws import Draws, draws_of
from workers.rollout.engines.ending import ending

__all__ = ["Counters", "DecodeBatch"]


@dataclass(slots=True)
class _Row:
    """One job in the engine. `tokens` are its prefix and what was sampled since; `emitted` counts all that was sampled for its request."""

    job: Job
    tokens: list[int]
    emitted: int
    draws: Draws

    @classmethod
    def of(cls, job: Job) -> _Row:
        """The row of a job that was just submitted."""
        return cls(job, list(job.prefix), job.emitted, draws_of(job))


@dataclass(slots=True)
class Counters:
    """What was done since the start. Written by the thread that decodes, read by anyone."""

    tokens: int = 0
    steps: int = 0
    prefills: int = 0
    prefilled_tokens: int = 0


class DecodeBatch:
    """At most `limit` running rows, and those that wait. Nothing is sampled before the first `swap`, and none while it sleeps."""

    def __init__(self, network: Qwen2, limit: int) -> None:
        self._network = network
        self._limit = limit
        self._cache = Cache(network.config, limit)
        self._running: list[_Row] = []
        self._waiting: deque[_Row] = deque()
        self.version = -1
        self.counters = Counters()

    @property
    def running(self) -> int:
        """Rows that get a token in the next step, besides those that it admits."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """A step would do nothing."""
        return self.version < 0 or not (self._running or self._waiting)

    def add(self, job: Job) -> None:
        """Let a job wait for a place."""
        self._waiting.append(_Row.of(job))

    def drop(self, job: JobId) -> None:
        """Forget a job."""
        self._waiting = deque(row for row in self._waiting if row.job.id != job)
        self._keep([row.job.id != job for row in self._running])

    def require_fit(self, tensors: Mapping[str, Tensor]) -> None:
        """Whether `swap` could take these weights.

        :raises EngineError: names what does not fit.
        """
        require_fit(tensors, self._network)

    def swap(self, tensors: Mapping[str, Tensor], version: int) -> None:
        """Take other weights between two steps; they fit."""
        if self.version < 0:
            self._network.load_state_dict({name: tensor.clone() for name, tensor in tensors.items()}, assign=True)
        else:
            self._network.load_state_dict(tensors)
        self.version = version
        self._waiting.extendleft(reversed(self._running))
        self._running.clear()

    def sleep(self) -> None:
        """Free weights and cache until the next `swap`. Names, shapes and dtypes of the weights stay known. No row may run."""
        without = {name: tensor.to("meta") for name, tensor in self._network.state_dict().items()}
        self._network.load_state_dict(without, assign=True)
        self._cache.free()
        self.version = -1

    def step(self) -> list[Emission]:
        """One token for every running row and for every row that finds a place."""
        logits = [self._decode()] if self._running else []
        logits += [self._prefill(rows) for rows in self._admissible()]
        tokens, logprobs = _sample(torch.cat(logits), self._running)
        emissions = [self._emission(*drawn) for drawn in zip(self._running, tokens, logprobs, strict=True)]
        self.counters.steps += 1
        self.counters.tokens += len(tokens)
        self._keep([emission.finish is None for emission in emissions])
        return emissions

    def _decode(self) -> Tensor:
        """Logits float[rows, vocabulary] after the last token of each running row."""
        last = torch.tensor([[row.tokens[-1]] for row in self._running])
        places = [len(row.tokens) - 1 for row in self._running]
        positions = torch.tensor(places)
        states = self._network.hidden(last, positions[:, None], self._cache.decoding(positions, max(places)))
        return self._network.head(states[:, 0])

    def _admissible(self) -> Iterator[list[_Row]]:
        """Waiting rows that find a place, those of like length together: padding less than doubles any row."""
        free = self._limit - len(self._running)
        admitted = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        groups: dict[int, list[_Row]] = {}
        for row in admitted:
            groups.setdefault(len(row.tokens).bit_length(), []).append(row)
        yield from groups.values()

    def _prefill(self, rows: list[_Row]) -> Tensor:
        """Logits float[rows, vocabulary] after all tokens of new rows, which run from now on."""
        lengths = [len(row.tokens) for row in rows]
        longest = max(lengths)
        tokens = torch.tensor([row.tokens + [0] * (longest - len(row.tokens)) for row in rows])
        attention = self._cache.prefilling(len(self._running), longest)
        states = self._network.hidden(tokens, torch.arange(longest)[None], attention)
        self._running += rows
        self.counters.prefills += 1
        self.counters.prefilled_tokens += sum(lengths)
        return self._network.head(states[torch.arange(len(rows)), torch.tensor(lengths) - 1])

    def _emission(self, row: _Row, token: int, logprob: float) -> Emission:
        if not math.isfinite(logprob):
            detail = f"the weights of version {self.version} give no finite distribution"
            return self._said(row, [], [], "failed", detail)
        row.tokens.append(token)
        row.emitted += 1
        finish = ending(row.job.sampling, row.emitted, token)
        if finish is None and len(row.tokens) >= self._network.config.max_position_embeddings:
            finish = "length"
        return self._said(row, [token], [logprob], finish)

    def _said(self, row: _Row, tokens: list[int], logprobs: list[float], finish: Finish | None, detail: str = "") -> Emission:
        return Emission(row.job.id, tokens, logprobs, self.version, self.version, finish, detail)

    def _keep(self, is_kept: Sequence[bool]) -> None:
        """Remove rows; the last ones move into their places."""
        kept = sum(is_kept)
        gaps = [place for place in range(kept) if not is_kept[place]]
        movers = [place for place in range(kept, len(is_kept)) if is_kept[place]]
        self._cache.move(list(zip(movers, gaps, strict=True)))
        for source, target in zip(movers, gaps, strict=True):
            self._running[target] = self._running[source]
        del self._running[kept:]


def _sample(logits: Tensor, rows: list[_Row]) -> tuple[list[int], list[float]]:
    """One token and its logprob per row of `logits` float[rows, vocabulary]."""
    temperatures = [row.job.sampling.temperature for row in rows]
    scales = torch.tensor([temperature or 1.0 for temperature in temperatures])
    logprobs = (logits / scales[:, None]).log_softmax(dim=-1)
    cumulative = logprobs.double().exp_().cumsum_(dim=-1)
    numbers = torch.tensor([row.draws.at(row.emitted) for row in rows], dtype=torch.float64)
    drawn = torch.searchsorted(cumulative, numbers[:, None] * cumulative[:, -1:], right=True).clamp_(max=logits.shape[1] - 1)
    if 0.0 in temperatures:
        is_greedy = torch.tensor([[temperature == 0.0] for temperature in temperatures])
        drawn = torch.where(is_greedy, logits.argmax(dim=-1, keepdim=True), drawn)
    tokens: list[int] = drawn[:, 0].tolist()
    chosen: list[float] = logprobs.gather(1, drawn)[:, 0].tolist()
    return tokens, chosen
