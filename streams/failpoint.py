"""Failpoints: places where a test may kill the process, named in one list so that each is hit at least once.

`SEAMLESSFLOW_FAILPOINT=trainer.after_send` kills (SIGKILL, no clean-up) at the first pass, `…:3` at the third. Unset, a pass costs one
comparison.
"""

from __future__ import annotations

import itertools
import os
import signal

VARIABLE = "SEAMLESSFLOW_FAILPOINT"

FAILPOINTS = frozenset(
    {
        "rollout.after_poll",
        "rollout.before_own_claim",
        "rollout.mid_span",
        "rollout.before_closing_span",
        "rollout.closing_span_sent",
        "rollout.after_closing_span",
        "rollout.before_release",
        "rollout.asleep",
        "rollout.awake",
        "trainer.granted",
        "trainer.after_fetch",
        "trainer.after_update",
        "trainer.after_files",
        "trainer.after_commit",
        "blobs.stored",
        "cas.after_init",
        "cas.after_send",
        "cas.in_commit",
        "cas.after_commit",
        "scheduler.before_grant",
        "scheduler.after_grant",
        "assembler.before_trajectory",
        "assembler.after_trajectory",
        "reward.after_score",
        "source.after_tasks",
    }
)

_name, _, _count = os.environ.get(VARIABLE, "").partition(":")
_passes = itertools.count(1)
_fatal_pass = int(_count or 1)

if _name and _name not in FAILPOINTS:
    raise ValueError(f"{VARIABLE}={_name}: no such failpoint; there are {', '.join(sorted(FAILPOINTS))}")


def failpoint(name: str) -> None:
    """Die here if the environment says so."""
    if name == _name and next(_passes) == _fatal_pass:
        os.kill(os.getpid(), signal.SIGKILL)
