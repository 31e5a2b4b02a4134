"""`topics`: the topic table against a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from streams.broker import TopicSpec

DEADLINE_S = 10.0
DAY_MS = 24 * 3600 * 1000


def topics(
    *,
    create: Annotated[bool, Parameter(negative="", help="Create the topics that are missing.")] = False,
    where: Where = AS_SET,
) -> None:
    """List the topics of the table with what the cluster has; exit code 12 where they differ."""
    import anyio

    from schemas.errors import TopicMismatch
    from streams.topics import differences, topic_specs

    connection = where.connection()
    wanted = topic_specs(connection.namespace, connection.session_partitions, int(connection.audit_retention_days * DAY_MS))
    found = anyio.run(_look, connection.address(), wanted, create)
    for spec in wanted:
        have = found.get(spec.name)
        print(f"{spec.name:32} " + ("missing" if have is None else f"{have.partitions:4} partitions, {policy(have.config)}"))
    lines = differences(wanted, found)
    if lines:
        raise TopicMismatch("; ".join(lines))


async def _look(bootstrap: str, wanted: list[TopicSpec], create: bool) -> dict[str, TopicSpec]:
    from infra.broker.admin import require_reachable
    from streams.kafka import KafkaBroker

    require_reachable(bootstrap)
    broker = KafkaBroker(bootstrap, client_id="topics", deadline_s=DEADLINE_S)
    if create:
        await broker.create_topics(wanted)
    return await broker.describe_topics([spec.name for spec in wanted])


def policy(config: Mapping[str, str]) -> str:
    """How long records stay, for people."""
    if "compact" in config.get("cleanup.policy", ""):
        return "the last record of each key"
    kept_ms = int(config.get("retention.ms", -1))
    return "kept for ever" if kept_ms < 0 else f"kept {kept_ms / DAY_MS:g} days"
