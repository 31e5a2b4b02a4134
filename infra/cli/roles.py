"""The table of roles: which coroutine runs each, and which settings it takes. Nothing is imported before it is asked for.

A service module gives `async def serve(settings, log, watch, *, task_status)`; `streams.service` frames it.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schemas.errors import UsageError

if TYPE_CHECKING:
    from schemas.settings import Settings


@dataclass(frozen=True, slots=True)
class Entry:
    """One role, by dotted paths `module:name`."""

    serve_path: str
    settings_path: str

    def serve(self) -> Any:
        """The role's coroutine function."""
        return load(self.serve_path)

    def settings(self) -> type[Settings]:
        """The role's settings model."""
        model: type[Settings] = load(self.settings_path)
        return model


ROLES = {
    "gateway": Entry("workers.gateway.service:serve", "workers.gateway.settings:GatewaySettings"),
    "rollout": Entry("workers.rollout.service:serve", "workers.rollout.settings:RolloutSettings"),
    "assembler": Entry("workers.assembler.service:serve", "workers.assembler.settings:AssemblerSettings"),
    "reward": Entry("workers.reward.service:serve", "workers.reward.settings:RewardSettings"),
    "source": Entry("workers.source.service:serve", "workers.source.settings:SourceSettings"),
    "scheduler": Entry("workers.scheduler.service:serve", "workers.scheduler.settings:SchedulerSettings"),
    "agents": Entry("workers.agents.service:serve", "workers.agents.settings:AgentsSettings"),
    "trainer": Entry("trainer.service:serve", "trainer.settings:TrainerSettings"),
}


def entry(role: str) -> Entry:
    """A row of the table.

    :raises UsageError: there is no such role.
    """
    try:
        return ROLES[role]
    except KeyError:
        raise UsageError(f"there is no role {role!r}; there are {', '.join(ROLES)}") from None


def known_sections() -> list[str]:
    """The tables that a settings file may hold."""
    return ["connection", *ROLES]


def load(path: str) -> Any:
    """The object at `module:name`.

    :raises UsageError: this installation does not have it.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as missing:
        raise UsageError(f"{path} needs {missing.name}, which is not installed") from missing
