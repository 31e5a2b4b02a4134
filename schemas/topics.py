"""The topic table: every topic, who writes it, who reads it, and how it is kept. Topics are created and checked from here alone."""

from __future__ import annotations

from typing import Literal

import msgspec

from schemas.deadletter import DeadLetter, Settlement
from schemas.grant import Grant, Role
from schemas.node import Control, NodeStatus, Tick
from schemas.record import Record
from schemas.score import Score
from schemas.session import Cancel, Claim, Close, Open, Request
from schemas.span import Span
from schemas.task import Task
from schemas.training import Drops, Run, Step, WeightVersion
from schemas.trajectory import Trajectory

Policy = Literal["keep", "audit", "compact", "delete"]
"""`keep`: for ever. `audit`: for the audit retention. `compact`: the last record of each key. `delete`: a week."""

SESSION_PARTITIONS = 64
"""Default of P. The three topics that follow a session have the same number, so that partition n means the same in each."""


class Topic(msgspec.Struct, frozen=True, kw_only=True, cache_hash=True):
    """One row of the table. `partitions` None means P. `committed` readers wait for transactions to commit."""

    name: str
    records: tuple[type[Record], ...]
    key: str
    partitions: int | None
    committed: bool
    policy: Policy
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    strict: bool = False
    """Readers stop at an unknown type or major instead of burying it (R4)."""

    def partition_count(self, session_partitions: int) -> int:
        """How many partitions the topic has where `sessions` has `session_partitions`."""
        return self.partitions or session_partitions


TASKS = Topic(
    name="tasks", records=(Task,), key="group", partitions=16, committed=True, policy="keep",
    writers=("source",), readers=("agents", "trainer"),
)
SESSIONS = Topic(
    name="sessions", records=(Open, Request, Cancel, Close, Claim, Span), key="session", partitions=None, committed=False,
    policy="audit", writers=("gateway", "rollout", "assembler"), readers=("gateway", "rollout", "assembler", "audit"), strict=True,
)
TRAJECTORIES = Topic(
    name="trajectories", records=(Trajectory,), key="session", partitions=None, committed=False, policy="audit",
    writers=("assembler",), readers=("reward", "trainer"),
)
SCORES = Topic(
    name="scores", records=(Score,), key="session", partitions=None, committed=False, policy="audit",
    writers=("reward",), readers=("trainer", "source"),
)
TRAINING = Topic(
    name="training", records=(Run, Step, Drops, WeightVersion), key="type", partitions=1, committed=True, policy="keep",
    writers=("trainer",), readers=("trainer", "source", "rollout", "agents", "gateway", "audit"),
)
NODES = Topic(
    name="nodes", records=(NodeStatus, Tick, Control), key="node", partitions=1, committed=False, policy="compact",
    writers=("rollout", "trainer", "scheduler", "cli"), readers=("scheduler", "gateway"),
)
GRANTS = Topic(
    name="grants", records=(Grant, Role), key="partition or node", partitions=1, committed=True, policy="compact",
    writers=("scheduler",), readers=("scheduler", "rollout", "trainer", "gateway"),
)
DEADLETTER = Topic(
    name="deadletter", records=(DeadLetter, Settlement), key="topic", partitions=1, committed=False, policy="delete",
    writers=("anyone",), readers=("operator",),
)

TOPICS: dict[str, Topic] = {
    topic.name: topic for topic in (TASKS, SESSIONS, TRAJECTORIES, SCORES, TRAINING, NODES, GRANTS, DEADLETTER)
}
"""By name, without the namespace."""
