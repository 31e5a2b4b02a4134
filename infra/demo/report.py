"""`report.json`: what the run showed. Figures about the log come from the audit, which reads it independently.

Invariant: a figure that could not be measured is null, never zero.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.audit.verify import Verdict
from infra.demo.evaluations import Evaluations
from infra.demo.proof import Proof
from infra.demo.story import Told


@dataclass(frozen=True, slots=True)
class Run:
    """What the demo knows of its own run. `added_ms` is {"p50", "p99"} from the gateway, `agent_errors` what agents saw."""

    steps: int
    seed: int
    staleness_bound: int
    wall_s: float
    setup_s: float
    added_ms: dict[str, float] | None
    agent_errors: int | None


def make_report(run: Run, verdict: Verdict, evaluations: Evaluations, told: Told, proof: Proof | None = None) -> dict[str, Any]:
    """All figures of a run by name; those of a recomputation where there was one."""
    figures, curve = verdict.figures, evaluations.curve()
    lost = None if run.agent_errors is None else figures.lost_requests + run.agent_errors
    return {
        "heldout_before": curve[0][1] if curve and curve[0][0] == 0 else None,
        "heldout_after": curve[-1][1] if len(curve) > 1 else None,
        "heldout": [{"version": version, "reward": reward} for version, reward in curve],
        "steps": verdict.steps,
        "episodes": figures.sessions,
        "dropped": verdict.dropped,
        "resumed_requests": figures.resumed_requests,
        "takeover_s": _takeover_s(verdict),
        "resumed_at_accepted_length": figures.resumed_at_accepted_length,
        "lost_requests": lost,
        "trained_twice": verdict.trained_twice,
        "staleness_max": verdict.staleness_max,
        "staleness_bound": run.staleness_bound,
        "audit_ok": verdict.audit_ok,
        "added_latency_ms": run.added_ms,
        "tokens": figures.tokens,
        "wall_s": round(run.wall_s, 1),
        "setup_s": round(run.setup_s, 1),
        "seed": run.seed,
        "trainer_kills": told.trainer_kills,
        "trainer_back_s": told.trainer_back_s,
        "requests_under_way_at_the_kill": told.victims_requests or None,
        "violations": [str(violation) for violation in verdict.violations[:20]],
        **({} if proof is None else proof.report()),
    }


def shortcomings(report: dict[str, Any], *, faults: bool, trainer_kills: int = 1) -> list[str]:
    """What a demo must show and this one did not; empty when all is well."""
    wanted: list[tuple[bool, str]] = [
        (report["audit_ok"] is True, "the audit found violations"),
        (report["lost_requests"] == 0, f"lost requests: {report['lost_requests']}"),
        (report["trained_twice"] == 0, f"tokens trained twice: {report['trained_twice']}"),
        (report["heldout_before"] is not None and report["heldout_after"] is not None, "an evaluation is missing"),
        (report.get("recomputed_equal", True) is True, f"the weights of the log were not made again {report.get('recompute_said', '')}"),
        (report["staleness_max"] is not None and report["staleness_max"] <= report["staleness_bound"], "staleness beyond its bound"),
    ]
    if faults:
        wanted += [
            ((report["resumed_requests"] or 0) >= 3, f"only {report['resumed_requests']} requests were resumed"),
            (report["resumed_at_accepted_length"] is True, "a request was not resumed at its accepted length"),
            (report["takeover_s"] is not None, "no takeover was measured"),
            (report["trainer_kills"] == trainer_kills, f"the trainer was killed {report['trainer_kills']} times"),
        ]
    return [said for holds, said in wanted if not holds]


def write_report(file: Path, report: dict[str, Any]) -> None:
    """Write it for people and programs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _takeover_s(verdict: Verdict) -> float | None:
    """The longest takeover after a death: SIGKILL to the first counted span of a resumed request."""
    seconds = [takeover.seconds for takeover in verdict.figures.takeovers if takeover.cause == "dead" and takeover.seconds is not None]
    return round(max(seconds), 3) if seconds else None
