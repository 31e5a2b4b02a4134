"""`topics`: the topic table against a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

DAY_MS = 24 * 3600 * 1000


def topics(
    *,
    create: Annotated[bool, Parameter(negative="", help="Create the topics that are missing.")] = False,
    where: Where = AS_SET,
) -> None:
    """List the topics of the table with what the cluster has; exit code 12 where they differ."""
    from infra.broker.admin import Admin
    from schemas.errors import TopicMismatch
    from streams.topics import differences, topic_specs

    connection = where.connection()
    wanted = topic_specs(connection.namespace, connection.session_partitions, int(connection.audit_retention_days * DAY_MS))
    admin = Admin(connection.address())
    if create:
        admin.create(wanted)
    found = admin.describe([spec.name for spec in wanted])
    for spec in wanted:
        have = found.get(spec.name)
        print(f"{spec.name:32} " + ("missing" if have is None else f"{have.partitions:4} partitions, {policy(have.config)}"))
    lines = differences(wanted, found)
    if lines:
        raise TopicMismatch("; ".join(lines))


def policy(config: Mapping[str, str]) -> str:
    """How long records stay, for people."""
    if "compact" in config.get("cleanup.policy", ""):
        return "the last record of each key"
    kept_ms = int(config.get("retention.ms", -1))
    return "kept for ever" if kept_ms < 0 else f"kept {kept_ms / DAY_MS:g} days"
