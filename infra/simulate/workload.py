"""A workload: what sessions are like, what the cluster is, and what things cost. TOML, checked; an unknown key is an error.

Times are seconds, lengths are tokens. Rates are those of a node of capacity 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from schemas.errors import UsageError
from schemas.settings import read_toml
from workers.scheduler.training import Costs

__all__ = ["SCENARIOS", "ClusterPart", "EnginePart", "Lengths", "SessionPart", "TrainingPart", "Workload", "load_workload"]

SCENARIOS = Path(__file__).with_name("scenarios")


class Part(BaseModel):
    """A table of the file."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lengths(Part):
    """Log-normal: half are below `median`, and one in a hundred is above `p99_ratio` times that."""

    median: float = Field(gt=0)
    p99_ratio: float = Field(ge=1)


class ClusterPart(Part):
    """The nodes. `capacities` are repeated in turn until there are enough."""

    nodes: int = Field(ge=1, le=10_000)
    capacities: tuple[float, ...] = Field((1.0,), min_length=1)
    partitions: int = Field(128, ge=1, le=10_000)
    losses_per_node_hour: float = Field(0.0, ge=0, description="nodes that vanish without a word (spot)")
    return_s: float = Field(300.0, gt=0, description="until another one comes in place of a lost one")

    def capacity(self, node: int) -> float:
        """Of the node with this number."""
        return self.capacities[node % len(self.capacities)]


class SessionPart(Part):
    """`output_tokens` are those of a whole session, and its turns have equal shares of them."""

    members: int = Field(8, ge=1, description="sessions of a group")
    groups_per_step: int = Field(64, ge=1)
    turns: tuple[int, ...] = Field((1,), min_length=1, description="as likely, each")
    output_tokens: Lengths
    prompt_tokens: int = Field(1000, ge=0)
    tool_tokens: int = Field(500, ge=0, description="what a tool adds to the context")
    tool_s: Lengths = Lengths(median=5.0, p99_ratio=10.0)
    environment_s: float = Field(0.0, ge=0, description="from the start of a session to its first request")


class EnginePart(Part):
    """An iteration over n requests takes `iteration_s + n * request_s`, and gives each a token."""

    iteration_s: float = Field(gt=0)
    request_s: float = Field(gt=0)
    slots: int = Field(256, ge=1)
    prefill_tokens_per_s: float = Field(gt=0)


class TrainingPart(Part):
    """One of `step_s` (all nodes together) and `share` (of a synchronous step without switches), which is measured first.

    `generation_s`: output lengths are scaled until sessions of a synchronous step take so long, without the start of their environments.
    """

    step_s: float = Field(0.0, ge=0)
    share: float = Field(0.0, ge=0, lt=1)
    generation_s: float = Field(0.0, ge=0)
    staleness: int = Field(4, ge=0, description="bound in versions; older tokens are masked")
    train_nodes: int = Field(ge=1, description="of the static splits that name no number")
    sleep_s: float = Field(10.0, ge=0)
    wake_s: float = Field(10.0, ge=0)
    sync_s: float = Field(ge=0)

    @model_validator(mode="after")
    def _one_of_two(self) -> TrainingPart:
        if (self.step_s > 0) == (self.share > 0):
            raise ValueError("give one of step_s and share")
        return self


class Workload(Part):
    """A file. `policies` are compared over `steps` steps after `warm_up` more."""

    cluster: ClusterPart
    session: SessionPart
    engine: EnginePart
    training: TrainingPart
    policies: tuple[str, ...] = Field(min_length=1)
    steps: int = Field(16, ge=1)
    warm_up: int = Field(8, ge=1)

    def costs(self) -> Costs:
        """As the scheduler takes them."""
        engine, training = self.engine, self.training
        return Costs(
            sleep_s=training.sleep_s, wake_s=training.wake_s, sync_s=training.sync_s, iteration_s=engine.iteration_s,
            request_s=engine.request_s, slots=engine.slots, prefill_tokens_per_s=engine.prefill_tokens_per_s,
        )


PartType = TypeVar("PartType", bound=Part)


def replaced(part: PartType, **values: Any) -> PartType:
    """The same with other values."""
    return part.model_copy(update=values)


def load_workload(name: str) -> Workload:
    """A scenario by its name, or a TOML file by its path.

    :raises UsageError: there is none, or a key or value is wrong; it is named.
    """
    file = Path(name) if name.endswith(".toml") else SCENARIOS / f"{name}.toml"
    if not file.exists():
        known = ", ".join(sorted(path.stem for path in SCENARIOS.glob("*.toml")))
        raise UsageError(f"there is no scenario {name!r}: name one of {known}, or a file that ends in .toml")
    tables: dict[str, Any] = {**read_toml(file)}
    tables |= tables.pop("comparison", {})
    try:
        return Workload(**tables)
    except ValidationError as failure:
        wrong = [f"{'.'.join(str(part) for part in error['loc'])}: {error['msg']}" for error in failure.errors()]
        raise UsageError(f"{file}: {'; '.join(wrong)}: correct it; the tables and keys are described in docs/scheduling.md") from None
