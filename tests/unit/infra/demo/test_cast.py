"""Layouts of the demo: who is tagged how, where the trainer steps, and that every role takes its settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import pytest

from infra.cli.roles import entry
from infra.demo.cast import Layout, Plan, services
from trainer.settings import TrainerSettings
from workers.rollout.settings import RolloutSettings
from workers.scheduler.settings import SchedulerSettings

EXPECTED: dict[Layout, tuple[list[str], int, str]] = {
    "disaggregated": ([], 1, "rollout-1"),
    "colocated": (["rollout-0", "rollout-1"], 2, "rollout-1"),
    "multiplexed": (["rollout-1"], 1, "rollout-0"),
}
"""By layout: the nodes that take turns, on how many of them a step runs at least, and which worker is killed."""


@pytest.mark.parametrize("layout", get_args(Layout))
def test_the_trainer_steps_on_the_nodes_that_are_tagged_both_ways(layout: Layout) -> None:
    plan = Plan(Path("run"), steps=10, seed=0, turns=1, layout=layout)
    specs = services(plan)
    settings = [entry(spec.role).settings().model_validate_json(json.dumps(dict(spec.settings), default=str)) for spec in specs]
    both = [each.node for each in settings if isinstance(each, RolloutSettings) and "train" in each.tags]
    (hosts,) = (each.hosts for each in settings if isinstance(each, TrainerSettings))
    (least,) = (each.least_train_nodes for each in settings if isinstance(each, SchedulerSettings))
    assert both == hosts
    assert (hosts, least, plan.victim) == EXPECTED[layout]
    assert all("rollout" in each.tags for each in settings if isinstance(each, RolloutSettings))
