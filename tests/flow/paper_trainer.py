"""A trainer whose weights are digests, in a process of its own: the loop is closed without torch.

`python -m tests.flow.paper_trainer BOOTSTRAP NAMESPACE STEP_S HOSTS READY_FILE`; HOSTS by commas, or empty.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from infra.cli.run import open_log
from schemas.training import WeightVersion
from streams.service import run_process
from tests.unit.trainer.runs import Disk, PaperTrainee
from trainer.service import role
from trainer.settings import TrainerSettings

GROUPS_PER_STEP = 2
STEPS = 100_000
PATIENCE_S = 600.0
"""No group is given up in a test: what was lost is missing."""
RULES = {"count": 1.0}
FEED = {"groups_per_step": GROUPS_PER_STEP, "rules": RULES, "group_deadline_s": PATIENCE_S, "retry_s": PATIENCE_S}
SETTINGS = TrainerSettings.model_validate({"steps": STEPS, "recovery_s": 1e9, "feed": FEED})


@dataclass
class SlowTrainee(PaperTrainee):
    """Takes its time for each new step; recovery, which trains the old ones again, does not."""

    step_s: float = 0.0

    def publish(self, version: int, step: int) -> WeightVersion:
        time.sleep(self.step_s)
        return super().publish(version, step)


def main() -> int:
    bootstrap, namespace, step_s, hosts, ready_file = sys.argv[1:]
    settings = SETTINGS.model_copy(update={"hosts": hosts.split(",") if hosts else []})
    trainer = role(settings, lambda _: SlowTrainee(Disk(), step_s=float(step_s)))
    return run_process(trainer, partial(open_log, bootstrap, namespace), role="trainer", ready_file=Path(ready_file))


if __name__ == "__main__":
    sys.exit(main())
