"""NodeStatus, Tick, Control: what nodes say of themselves, the scheduler's clock, and what an operator asks for."""

from __future__ import annotations

from typing import Literal

from schemas.record import Record

State = Literal["loading", "serving", "draining", "asleep", "training", "left"]
Tag = Literal["rollout", "train"]


class NodeStatus(Record, frozen=True, kw_only=True):
    """A node lives, and its engine makes progress. Key: `node/NAME`.

    `incarnation` is random per process: a new one means that the old one is dead. `capacity` is relative (tokens per second at full batch,
    or 1.0). `grants_seen` is the next offset of `grants` that the node will read; `partitions` are those that it holds (claimed and not
    released): both together acknowledge a revoke. `left` is the last word of a clean leave. `own_s` and `first_token_s` are of the slowest
    partition of the newest taking: seconds until its Claim was read back, and from there to the first token of a request that waited.

    `hosts` are the nodes that a trainer steps on and that generate at other times: it is a part of each of them, has no tag of its own, and
    its `grants_seen` stands still while it steps. `ready_groups` are complete groups that wait for its next step.
    """

    node: str
    incarnation: str
    tags: list[Tag]
    state: State
    capacity: float = 1.0
    version: int = -1
    grants_seen: int = 0
    partitions: list[int] = []
    running: int = 0
    waiting: int = 0
    tokens: int = 0
    detail: str = ""
    own_s: float = 0.0
    first_token_s: float = 0.0
    hosts: list[str] = []
    ready_groups: int = 0

    def key(self) -> bytes:
        """The node's name."""
        return b"node/" + self.node.encode()


class Tick(Record, frozen=True, kw_only=True):
    """The scheduler's clock, in the log: a node is dead when four of one scheduler's ticks follow its last status. Key: `tick`."""

    scheduler: str
    number: int

    def key(self) -> bytes:
        """`tick`: only the last one is kept."""
        return b"tick"


class Control(Record, frozen=True, kw_only=True):
    """An operator's wish. `drain` and `undrain` name a node; `pause` and `resume` mean the whole namespace."""

    command: Literal["pause", "resume", "drain", "undrain"]
    node: str = ""
    reason: str = ""

    def key(self) -> bytes:
        """One key for pause and resume, one per node for drain and undrain: the last wish stands."""
        return b"control/drain/" + self.node.encode() if self.node else b"control/pause"
