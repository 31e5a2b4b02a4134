"""Workloads that can be worked out by hand: every session has the same length."""

from __future__ import annotations

from typing import Any

from infra.simulate.workload import Workload


def workload(**tables: dict[str, Any]) -> Workload:
    """Two nodes, two groups of two sessions a step, 100 tokens each, 10 s of training on both nodes; `tables` overrule."""
    values: dict[str, dict[str, Any]] = {
        "cluster": {"nodes": 2, "partitions": 4},
        "session": {"members": 2, "groups_per_step": 2, "prompt_tokens": 0, "output_tokens": {"median": 100, "p99_ratio": 1}},
        "engine": {"iteration_s": 0.01, "request_s": 0.005, "prefill_tokens_per_s": 1000},
        "training": {"step_s": 10, "train_nodes": 1, "sleep_s": 1, "wake_s": 1, "sync_s": 0, "staleness": 2},
    }
    merged = {name: table | tables.get(name, {}) for name, table in values.items()}
    return Workload(**merged, policies=("tags",), steps=4, warm_up=2)  # type: ignore[arg-type]
