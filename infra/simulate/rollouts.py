"""The source and the agents: groups start as far ahead as the bound allows, and their sessions go from turn to turn.

Invariant: groups in flight (started, not trained) are never more than (`ahead` + 1) batches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from infra.simulate.clock import Clock
from infra.simulate.fleet import Fleet
from infra.simulate.policies import Policy
from infra.simulate.sessions import Group, Session, draw_group
from infra.simulate.workload import Workload

__all__ = ["Rollouts"]


class Rollouts:
    """`complete` is called with each group whose sessions have all ended."""

    def __init__(
        self, clock: Clock, workload: Workload, policy: Policy, seed: int, fleet: Fleet, complete: Callable[[Group], None]
    ) -> None:
        self.bound_groups = (policy.ahead + 1) * workload.session.groups_per_step
        self.in_flight = self.running = self.most_in_flight = 0
        self._clock, self._part, self._policy, self._seed, self._fleet = clock, workload.session, policy, seed, fleet
        self._complete = complete
        self._started = 0

    def fill(self) -> None:
        """Start what may be started."""
        if self._policy.is_fluid:
            while self.in_flight < self.bound_groups and self._start():
                pass
        elif not self.running and self.in_flight <= self.bound_groups - self._part.groups_per_step:
            for _ in range(self._part.groups_per_step):
                self._start()

    def trained(self, groups: int) -> None:
        """So many are not in flight any more."""
        self.in_flight -= groups
        self.fill()

    def request_ended(self, session: Session) -> None:
        """The next turn after the tool, or the end."""
        tool_s = session.tools_s[session.turn] if session.turn < len(session.tools_s) else 0.0
        if session.proceed():
            self._clock.after(tool_s, partial(self._fleet.submit, session))
            return
        self._fleet.close(session)
        session.group.left -= 1
        if not session.group.left:
            self.running -= 1
            self._complete(session.group)
            self.fill()

    def _start(self) -> bool:
        group = draw_group(self._part, self._seed, self._started, self._clock.now_s)
        if not self._fleet.place(group.sessions):
            return False
        self._started += 1
        self.in_flight += 1
        self.running += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        for session in group.sessions:
            session.begin()
            self._clock.after(self._part.environment_s, partial(self._fleet.submit, session))
        return True
