"""`run ROLE`: one role in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from streams.log import Log


def run(
    role: str,
    /,
    *,
    set_: Annotated[tuple[str, ...], Parameter(name=["--set", "-s"], negative="", help="A setting of the role, as name=value.")] = (),
    ready_file: Annotated[Path | None, Parameter(help="Written once the role can work: its name and pid, as JSON.")] = None,
    limit_s: Annotated[float, Parameter(help="Seconds without progress before the process gives up (exit code 40).")] = 60.0,
    where: Where = AS_SET,
) -> int:
    """Run one role until SIGTERM: gateway, rollout, assembler, reward, source, scheduler, agents or trainer."""
    from infra.broker.admin import require_reachable
    from infra.cli.roles import entry, known_sections
    from schemas.settings import load_settings, require_sections
    from streams.service import run_process

    chosen, connection = entry(role), where.connection()
    require_sections(where.file(), known_sections())
    settings, _ = load_settings(chosen.settings(), role, assignments(set_), file=where.file())
    require_reachable(connection.address())
    log_of = partial(open_log, connection.address(), connection.namespace, blobs=connection.blob_root())
    return run_process(chosen.role(settings), log_of, role=role, ready_file=ready_file, limit_s=limit_s)


@asynccontextmanager
async def open_log(bootstrap: str, namespace: str, role: str, *, blobs: str | None = None) -> AsyncIterator[Log]:
    """The log of a namespace in a Kafka, for one role of this process. Without `blobs`, a store's root, it writes no large record.

    :raises UsageError: there cannot be a store at `blobs`.
    """
    from streams.blobs import Blobs
    from streams.kafka import KafkaBroker
    from streams.log import Log

    yield Log(KafkaBroker(bootstrap, client_id=role), namespace, role, Blobs(blobs))


def assignments(pairs: tuple[str, ...]) -> dict[str, str]:
    """`name=value` texts as a mapping.

    :raises UsageError: one has no `=`.
    """
    from schemas.errors import UsageError

    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        raise UsageError(f"--set {wrong[0]}: expected name=value")
    return dict(pair.split("=", 1) for pair in pairs)
