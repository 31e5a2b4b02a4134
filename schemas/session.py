"""The records of `sessions` besides Span: Open, Request, Cancel, Close, Claim. Their fold is `workers.ledger`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from schemas.arrays import length
from schemas.record import Record
from schemas.task import Purpose

Cause = Literal["dead", "moved", "joined"]
"""Why a partition changes hands: the old owner died, it gave the partition back, or there was no owner."""


class Open(Record, frozen=True, kw_only=True):
    """A session begins; its offset is the session's id. Each Open is a session of its own, a resent one too."""

    nonce: bytes
    check: str
    purpose: Purpose = "train"
    group: int | None = None
    member: int | None = None
    attempt: int = 0
    payload: dict[str, Any] = {}
    model: str = "policy"
    gateway: str = ""

    def key(self) -> bytes:
        """The check: the session has no offset yet."""
        return self.check.encode()


class Sampling(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How tokens are to be drawn. These travel with the tokens, so that the trainer can reproduce the distribution (R11).

    `temperature` 0 is greedy. `seed` makes a request's tokens the same whatever else is in the batch.
    """

    max_tokens: int
    temperature: float = 1.0
    seed: int | None = None
    stop_token_ids: list[int] = []

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens is {self.max_tokens}, must be at least 1")
        if not 0.0 <= self.temperature <= 100.0:
            raise ValueError(f"temperature is {self.temperature}, must lie in [0, 100]")


class Request(Record, frozen=True, kw_only=True):
    """One call's generation; its offset is the request's id.

    The prompt is the first `base_length` tokens of request `base`'s whole sequence (its prompt and what was sampled for it),
    followed by `tokens` (int32): only what is new is written. `base` None means that `tokens` is the whole prompt.
    """

    session: int
    nonce: bytes
    tokens: bytes
    sampling: Sampling
    base: int | None = None
    base_length: int = 0
    stream: bool = False

    def __post_init__(self) -> None:
        length(self.tokens)
        if self.base_length < 0 or (self.base is None and self.base_length):
            raise ValueError(f"base_length {self.base_length} without a base")

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session


class Cancel(Record, frozen=True, kw_only=True):
    """The agent of a request left; the request ends unless it had ended before."""

    session: int
    request: int
    reason: str = "client left"

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session


class Close(Record, frozen=True, kw_only=True):
    """A session ends.

    By the agent's runner with an `outcome` and perhaps a `reward`; or `idle`, by the assembler, which names the last counted record of
    the session that it had seen (`seen`) and is ignored if one followed. `expired` closes for age, unconditionally.
    """

    session: int
    nonce: bytes = b""
    outcome: str = "ok"
    reward: float | None = None
    idle: bool = False
    seen: int = -1

    def key(self) -> bytes:
        """The session's offset."""
        return b"%d" % self.session


class Claim(Record, frozen=True, kw_only=True):
    """Owner `node` answers its Grant at offset `epoch`; spans of lower epochs stop counting here (R1).

    `reset` ends every earlier session in every fold: written only where retention passed all Positions (R5).
    """

    epoch: int
    node: str
    incarnation: str
    cause: Cause = "joined"
    reset: bool = False

    def key(self) -> bytes:
        """`claim`."""
        return b"claim"
