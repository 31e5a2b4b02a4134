"""Span: a run of tokens of one request, sampled under one version by one owner.

The exemplar of a record: every field has a unit or a meaning in the docstring, and `__post_init__` holds what must be true of it
both when it is written and when it is read (R4).
"""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.arrays import length, require_aligned, require_finite
from schemas.record import Record

Finish = Literal["stop", "length", "failed"]


class Auxiliary(msgspec.Struct, frozen=True, kw_only=True):
    """One more per-token array (for example routed experts): `data` holds the tokens' values in order, as numpy's `dtype` text."""

    name: str
    dtype: str
    data: bytes


class Span(Record, frozen=True, kw_only=True):
    """Tokens `start …` of `request`, in the order in which they were sampled.

    `tokens` int32[n]; `logprobs` float32[n], nats, of the distribution that was sampled (temperature applied, R11); n may be 0 only
    where `finish` says how the request ended. `epoch` is the owner's Grant. `version` is the weights' number for all n tokens;
    `kv_version` is the oldest version in the cache that they were sampled over (equal in mode `exact`, R9). `engine_ms`, on a closing
    span, is how long the engine had the request under this owner, by the owner's clock: what an agent waited beyond it, the log cost.

    :raises ValueError: lengths differ, a logprob is not finite, or the span says nothing.
    """

    session: int
    request: int
    epoch: int
    start: int
    tokens: bytes
    logprobs: bytes
    version: int
    kv_version: int
    finish: Finish | None = None
    detail: str = ""
    engine_ms: float = 0.0
    auxiliary: list[Auxiliary] = []

    def __post_init__(self) -> None:
        require_aligned(tokens=length(self.tokens), logprobs=length(self.logprobs))
        require_finite("logprobs", self.logprobs)
        if not self.tokens and self.finish is None:
            raise ValueError("a span without tokens must end its request")
        if self.start < 0 or self.version < 0 or not 0 <= self.kv_version <= self.version:
            raise ValueError(f"start {self.start}, version {self.version}, kv_version {self.kv_version} are not possible")

    @property
    def count(self) -> int:
        """Number of tokens."""
        return length(self.tokens)

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session
