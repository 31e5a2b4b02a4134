"""A whole pipeline on one machine as a crew: which processes, and the settings that follow from each other.

Invariant: what the settings file or the environment says of a role is never overruled; only what both leave open is filled in, so that
roles agree: one model folder, the trainer's rules those of the reward role, steps and the groups of a step those of the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from infra.cli.roles import entry
from infra.crew.member import Spec
from schemas.settings import load_settings
from workers.reward.rule import load_rule
from workers.reward.settings import RewardSettings
from workers.source.settings import SourceSettings

__all__ = ["AGENTS", "GATEWAY", "UpSettings", "agents", "model_dir", "services"]

GATEWAY, AGENTS = "gateway", "agents"
ALONE = ("assembler", "reward", "source", "scheduler")
"""Roles of which one process each runs."""


class UpSettings(BaseModel):
    """What `seamlessflow up` starts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    nodes: Literal[1, 3] = Field(1, description="Brokers of the local Kafka.")
    rollouts: int = Field(1, ge=0, description="Rollout workers: rollout-0, rollout-1, …")
    trainer: bool = Field(True, description="Whether a trainer runs here.")
    agents: bool = Field(True, description="Whether agents run here; they may run anywhere else, or be somebody else's.")
    model_dir: Path | None = Field(None, description="Model folder of all roles; default: `model` in the run folder, made if missing.")


def model_dir(settings: UpSettings, run_dir: Path) -> Path:
    """The model folder of the roles that name none of their own."""
    return settings.model_dir or run_dir / "model"


def services(settings: UpSettings, run_dir: Path, file: Path) -> list[Spec]:
    """All but agents: they need the gateway's address.

    :raises UsageError: a table of the settings file is wrong.
    """
    model, snapshots = {"model_dir": model_dir(settings, run_dir)}, {"snapshots": str(run_dir / "snapshots")}
    given: dict[str, Mapping[str, object]] = {
        GATEWAY: {**model, **snapshots, "address_file": address_file(run_dir)}, "reward": model, "assembler": snapshots,
        "scheduler": {"staleness_bound": load_settings(SourceSettings, "source", file=file)[0].staleness_bound},
    }
    specs = [Spec(role, role, _open(role, given.get(role, {}), file)) for role in (GATEWAY, *ALONE)]
    for number in range(settings.rollouts):
        name = f"rollout-{number}"
        specs.append(Spec(name, "rollout", {**_open("rollout", {**model, **snapshots}, file), "node": name}))
    if settings.trainer:
        specs.append(Spec("trainer", "trainer", _trainer({**model, **_folders(run_dir)}, file)))
    return specs


def agents(gateway_url: str, file: Path) -> Spec:
    """The agents of this machine."""
    return Spec(AGENTS, "agents", _open("agents", {"gateway_url": gateway_url}, file))


def address_file(run_dir: Path) -> Path:
    """Where the gateway says how it is reached."""
    return run_dir / "gateway.url"


def _folders(run_dir: Path) -> dict[str, object]:
    return {"weights_dir": run_dir / "weights", "checkpoint_dir": run_dir / "checkpoints"}


def _trainer(given: dict[str, object], file: Path) -> dict[str, object]:
    """The trainer follows the source and the reward role; a `feed` of its own is taken as it is."""
    source, _ = load_settings(SourceSettings, "source", file=file)
    reward, _ = load_settings(RewardSettings, "reward", file=file)
    filled = _open("trainer", {**given, "steps": source.steps, "feed": {}}, file)
    if "feed" in filled:
        filled["feed"] = {"groups_per_step": source.groups_per_step, "rules": {load_rule(reward.rule).name: 1.0}}
    return filled


def _open(role: str, values: Mapping[str, object], file: Path) -> dict[str, Any]:
    """Those of these values that neither the file nor the environment sets."""
    _, sources = load_settings(entry(role).settings(), role, file=file)
    return {name: value for name, value in values.items() if sources[name] == "default"}
