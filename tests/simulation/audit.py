"""The project's own audit over a schedule's log: slower than `invariants`, and it knows more rules (Positions, watermarks, nonces)."""

from __future__ import annotations

from infra.audit.log import ListLog
from infra.audit.verify import Audit, AuditOptions
from tests.simulation.cluster import Cluster

GROUPS = ("rollout", "assembler")


def audited(cluster: Cluster, namespace: str, staleness_bound: int) -> list[str]:
    """What the audit objects to."""
    commits = {group: cluster.commits(namespace + group) for group in GROUPS}
    log = ListLog(list(cluster.messages()), commits, namespace=namespace)
    verdict = Audit(log, AuditOptions(staleness_bound=staleness_bound, weights=False)).run()
    return [f"audit: {violation}" for violation in verdict.violations]
