"""The table of roles: which coroutine runs each, and which settings it takes. Nothing is imported before it is asked for.

A service module gives `role(settings)`, which answers the coroutine that `streams.service` frames; a settings module gives its model.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from streams.service import Role


@dataclass(frozen=True, slots=True)
class Entry:
    """One role, by dotted paths `module:name`."""

    role_path: str
    settings_path: str

    def role(self, settings: BaseModel) -> Role:
        """The role's coroutine, with these settings."""
        made: Role = load(self.role_path)(settings)
        return made

    def settings(self) -> type[BaseModel]:
        """The role's settings model."""
        model: type[BaseModel] = load(self.settings_path)
        return model


ROLES = {
    "gateway": Entry("workers.gateway.service:role", "workers.gateway.settings:GatewaySettings"),
    "rollout": Entry("workers.rollout.service:role", "workers.rollout.settings:RolloutSettings"),
    "assembler": Entry("workers.assembler.service:role", "workers.assembler.settings:AssemblerSettings"),
    "reward": Entry("workers.reward.service:role", "workers.reward.settings:RewardSettings"),
    "source": Entry("workers.source.service:role", "workers.source.settings:SourceSettings"),
    "scheduler": Entry("workers.scheduler.service:role", "workers.scheduler.settings:SchedulerSettings"),
    "agents": Entry("workers.agents.service:role", "workers.agents.settings:AgentsSettings"),
    "trainer": Entry("trainer.service:role", "trainer.settings:TrainerSettings"),
}

BENCH_ROLES = {
    "bench_feed": Entry("infra.bench.feed:role", "infra.bench.feed:BenchFeedSettings"),
    "bench_direct": Entry("infra.bench.direct:role", "workers.gateway.settings:GatewaySettings"),
}
"""Stand-ins that `seamlessflow bench` starts."""


def entry(role: str) -> Entry:
    """A row of the tables.

    :raises UsageError: there is no such role.
    """
    try:
        return ROLES[role] if role in ROLES else BENCH_ROLES[role]
    except KeyError:
        raise UsageError(f"there is no role {role!r}; there are {', '.join(ROLES)}") from None


def known_sections() -> list[str]:
    """The tables that a settings file may hold."""
    return ["connection", "up", *ROLES]


def load(path: str) -> Any:
    """The object at `module:name`.

    :raises UsageError: this installation does not have it.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise UsageError(f"{path} needs {missing.name}, which is not installed") from missing
