"""A simulated node: what it does, since when, and for how long it has done so. Its engine is a fluid."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from infra.simulate.clock import Clock
from infra.simulate.engine import Engine, Work
from infra.simulate.sessions import Session
from schemas.grant import Role
from schemas.node import State, Tag
from workers.scheduler.training import Costs
from workers.scheduler.view import NodeView

__all__ = ["Mode", "SimulatedNode", "Stretch"]

Mode = Literal["rollout", "switch", "ready", "train", "gone"]
"""`ready`: in the role of a trainer, without a step."""


class Stretch(NamedTuple):
    """From `begin_s` to `end_s` a node was in one mode."""

    begin_s: float
    end_s: float
    mode: Mode


@dataclass(eq=False)
class SimulatedNode:
    """By name; a new incarnation after each loss. `assigned` are the open sessions of the partitions that it holds."""

    name: str
    tags: tuple[Tag, ...]
    capacity: float
    clock: Clock
    costs: Costs
    ended: Callable[[Session], None]
    incarnation: str = ""
    state: State = "loading"
    mode: Mode = "rollout"
    role: Role | None = None
    held: set[int] = field(default_factory=set)
    assigned: int = 0
    losses: int = 0
    gone_at_s: float = 0.0
    work: Work = field(default_factory=Work)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    stretches: list[Stretch] = field(default_factory=list)
    _since_s: float = 0.0

    def __post_init__(self) -> None:
        self.engine = self._new_engine()
        self.incarnation = f"{self.name}.0"
        self.be("serving", "rollout" if "rollout" in self.tags else "ready")

    @property
    def is_alive(self) -> bool:
        """Whether it was not lost."""
        return self.mode != "gone"

    @property
    def may_train(self) -> bool:
        """Whether a step may use it now."""
        if self.mode != "ready":
            return False
        return self.tags == ("train",) or (self.role is not None and self.role.role == "train" and not self.role.asleep)

    def be(self, state: State, mode: Mode) -> None:
        """Do something else from now on."""
        self.book()
        self.state, self.mode = state, mode

    def book(self) -> None:
        """Count the time until now."""
        now_s = self.clock.now_s
        if now_s > self._since_s:
            self.seconds[self.mode] += now_s - self._since_s
            self.stretches.append(Stretch(self._since_s, now_s, self.mode))
        self._since_s = now_s

    def vanish(self) -> None:
        """Lost, with all that its engine had."""
        self.be("left", "gone")
        self.losses, self.gone_at_s = self.losses + 1, self.clock.now_s
        self.held, self.assigned = set(), 0

    def come_back(self, role: Role | None) -> None:
        """Another incarnation, which does what the last Role says."""
        self.incarnation, self.role, self.engine = f"{self.name}.{self.losses}", role, self._new_engine()

    def view(self, seen: int, tick_s: float) -> NodeView:
        """Its last status, as the scheduler has it."""
        ticks = 0 if self.is_alive else int((self.clock.now_s - self.gone_at_s) / tick_s)
        return NodeView(
            node=self.name, incarnation=self.incarnation, tags=self.tags, state=self.state if self.is_alive else "serving",
            capacity=self.capacity, ticks=ticks, is_heard=True, grants_seen=seen, partitions=frozenset(self.held),
        )

    def _new_engine(self) -> Engine:
        return Engine(self.clock, self.costs, self.capacity, self.work, self.ended)
