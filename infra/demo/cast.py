"""The demo's crew: which processes, with which settings. Roles without torch share nothing but the log, too: each can die alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from infra.crew.member import Spec

MEMBERS = 8
GROUPS_PER_STEP = 4
STALENESS_BOUND = 2
"""Groups in flight: (this + 1) steps' worth. Enough to keep two workers busy while the trainer trains."""
TRAINED_STALENESS_BOUND = 2 * (STALENESS_BOUND + 1)
"""Older tokens are masked. Beyond what the groups in flight allow, because a takeover holds a few sessions while training goes on."""
WORKERS = ("rollout-0", "rollout-1")
Layout = Literal["disaggregated", "colocated", "multiplexed"]
HOSTS: dict[Layout, tuple[str, ...]] = {"disaggregated": (), "colocated": WORKERS, "multiplexed": WORKERS[1:]}
"""On which of the rollout workers' nodes the trainer steps, too: on none, on all together, or on one."""
GATEWAY, AGENTS, TRAINER = "gateway", "agents", "trainer"
LIGHT = ("assembler", "reward", "source", "scheduler")


@dataclass(frozen=True, slots=True)
class Plan:
    """What the visitor chose."""

    run_dir: Path
    steps: int
    seed: int
    turns: int
    layout: Layout = "disaggregated"

    @property
    def hosts(self) -> tuple[str, ...]:
        """The nodes that generate and train by turns."""
        return HOSTS[self.layout]

    @property
    def victim(self) -> str:
        """The worker that is killed in mid-generation: one that generates all the time, where there is one."""
        return next((name for name in reversed(WORKERS) if name not in self.hosts), WORKERS[-1])

    @property
    def model_dir(self) -> Path:
        """The initial model."""
        return self.run_dir / "model"

    @property
    def snapshots(self) -> Path:
        """Folds of partitions, for those who take over."""
        return self.run_dir / "snapshots"

    @property
    def address_file(self) -> Path:
        """Where the gateway says how it is reached."""
        return self.run_dir / "gateway.url"

    @property
    def agents_file(self) -> Path:
        """What the agents counted."""
        return self.run_dir / "agents.json"


def services(plan: Plan) -> list[Spec]:
    """All but agents: they need the gateway's address."""
    return [
        Spec(GATEWAY, "gateway", {"model_dir": plan.model_dir, "address_file": plan.address_file, "snapshots": plan.snapshots}),
        Spec("assembler", "assembler", {"idle_s": 30, "snapshots": plan.snapshots}),
        Spec("reward", "reward", {"model_dir": plan.model_dir, "rule": "infra.demo.plugins:NextLetterRule"}),
        Spec("scheduler", "scheduler", {"staleness_bound": STALENESS_BOUND, "least_train_nodes": max(1, len(plan.hosts))}),
        Spec("source", "source", _source(plan)),
        *(Spec(name, "rollout", _rollout(plan, name)) for name in WORKERS),
        Spec(TRAINER, "trainer", _trainer(plan)),
    ]


def agents(plan: Plan, gateway_url: str) -> Spec:
    """The agents: most by plain HTTP, a share by the openai client."""
    first = "infra.demo.plugins:fast_agent" if plan.turns == 1 else "infra.demo.plugins:patient_agent"
    settings = {
        "gateway_url": gateway_url,
        "agent": first,
        "second_agent": "infra.demo.plugins:agent",
        "second_share": 0.1,
        "concurrency": MEMBERS * GROUPS_PER_STEP * (STALENESS_BOUND + 1),
        "report_file": plan.agents_file,
    }
    return Spec(AGENTS, "agents", settings)


def _rollout(plan: Plan, name: str) -> dict[str, object]:
    tags = ["rollout", "train"] if name in plan.hosts else ["rollout"]
    return {"node": name, "tags": tags, "model_dir": plan.model_dir, "batch": 32, "snapshots": plan.snapshots}


def _source(plan: Plan) -> dict[str, object]:
    return {
        "tasks": "infra.demo.plugins:tasks",
        "seed": plan.seed,
        "members": MEMBERS,
        "groups_per_step": GROUPS_PER_STEP,
        "staleness_bound": STALENESS_BOUND,
        "steps": plan.steps,
        "evaluate_every": max(5, plan.steps // 6),
    }


def _trainer(plan: Plan) -> dict[str, object]:
    feed = {
        "groups_per_step": GROUPS_PER_STEP,
        "rules": {"next_letter": 1.0},
        "staleness_bound": TRAINED_STALENESS_BOUND,
        "group_deadline_s": 60,
        "retry_s": 30,
        "drops_deadline_s": 0.3,
        "seed": plan.seed,
        "layout": {"epochs": 2},
    }
    return {
        "run": "demo",
        "hosts": list(plan.hosts),
        "steps": plan.steps,
        "model_dir": plan.model_dir,
        "weights_dir": plan.run_dir / "weights",
        "checkpoint_dir": plan.run_dir / "checkpoints",
        "recovery_s": 5,
        "feed": feed,
    }
