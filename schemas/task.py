"""Task: one slot that an agent should fill. Written by the source through cas, read by agents and by the trainer."""

from __future__ import annotations

from typing import Any, Literal

from schemas.record import Record

Purpose = Literal["train", "eval"]
"""`eval` episodes travel the same path and never enter training (R11)."""


class Task(Record, frozen=True, kw_only=True):
    """One member of one group.

    `number` counts Tasks from 0 without a gap, `group` counts groups from 0 without a gap, over training and evaluation alike: so
    that "decided" is a low watermark and a small set (R6). `payload` is the environment's own, handed to the agent and copied
    into the session's Open for the reward rule. `evaluates` is the version at which an evaluation round was asked for.
    """

    number: int
    group: int
    member: int
    members: int
    purpose: Purpose = "train"
    payload: dict[str, Any] = {}
    seed: int = 0
    evaluates: int | None = None

    def key(self) -> bytes:
        """The group."""
        return b"%d" % self.group
