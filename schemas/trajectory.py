"""Trajectory: the token tree of one ended session, as the fold of its partition gives it. Written once a session, in Close order."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.arrays import length, require_aligned, require_finite
from schemas.record import Record
from schemas.session import Sampling
from schemas.task import Purpose

NodeEnd = Literal["stop", "length", "failed", "cancelled", "closed"]


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of the session: what it added to its parent's sequence.

    `parent` is an index into the trajectory's nodes (−1: a root) and `parent_length` how many tokens of the parent's whole sequence
    precede this node's. Arrays have one length n, prompt part first: `tokens` int32[n]; `mask` uint8[n], 1 where the token may be
    trained (sampled, in a request that ended by `stop` or `length`); `logprobs` float32[n], 0.0 where mask and `sampled` say nothing
    was sampled; `versions` int32[n], −1 for prompt tokens. The first `prompt` tokens are given, the others sampled.
    """

    request: int
    parent: int = -1
    parent_length: int = 0
    prompt: int
    tokens: bytes
    mask: bytes
    logprobs: bytes
    versions: bytes
    sampling: Sampling
    end: NodeEnd

    def __post_init__(self) -> None:
        count = length(self.tokens)
        require_aligned(tokens=count, mask=len(self.mask), logprobs=length(self.logprobs), versions=length(self.versions))
        require_finite("logprobs", self.logprobs)
        if not 0 <= self.prompt <= count:
            raise ValueError(f"prompt {self.prompt} of {count} tokens")


class Trajectory(Record, frozen=True, kw_only=True):
    """One ended session. `close` is the offset of the record that ended it: the duplicate test of R6.

    `nodes` are in the order of their requests, so that a parent precedes its children. Empty is legal, and never usable.
    `reward` is what the agent's runner reported, if anything.
    """

    session: int
    close: int
    check: str = ""
    purpose: Purpose = "train"
    group: int | None = None
    member: int | None = None
    attempt: int = 0
    payload: dict[str, Any] = {}
    model: str = "policy"
    outcome: str = "ok"
    reward: float | None = None
    nodes: list[Node] = []

    @property
    def is_empty(self) -> bool:
        """True where no token may be trained."""
        return not any(1 in node.mask for node in self.nodes)

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session
