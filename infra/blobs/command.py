"""`blobs list` and `blobs collect`: the store of large payloads, compared with the log."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
from cyclopts import Parameter
from rich.console import Console

from infra.blobs.collect import GRACE_S, Holders, Progress, collect, holders
from infra.broker.admin import require_reachable
from infra.cli.run import open_log
from infra.cli.where import AS_SET, Where
from schemas.errors import UsageError

if TYPE_CHECKING:
    from streams.blobstore import Stored
    from streams.log import Log

T = TypeVar("T")


def show(*, where: Where = AS_SET) -> None:
    """List the blobs with their sizes and the topic and partition of a record that refers to each; reads the whole log."""
    stored, held = _with_log(where, _look)
    for blob in stored:
        holder = held.get(blob.name)
        by = f"{holder.topic}[{holder.partition}]" if holder else "nobody"
        print(f"{blob.name}  {blob.bytes:>12,} bytes  held by {by}")
    print(f"{len(stored)} blobs, {_megabytes(stored)}, in {where.connection().blob_root()}")


def collect_garbage(
    *,
    dry_run: Annotated[bool, Parameter(negative="", help="Only list what would be removed.")] = False,
    grace_s: Annotated[float, Parameter(help="Keep what is younger; less than an hour is safe only while nothing writes.")] = GRACE_S,
    where: Where = AS_SET,
) -> None:
    """Remove blobs to which no retained record refers. It may run at any time, and be interrupted."""
    if grace_s < 0:
        raise UsageError(f"--grace-s {grace_s:g}: a time, in seconds")

    found = _with_log(where, lambda log, progress: collect(log, time.time(), grace_s, progress, dry_run=dry_run))
    for blob in found:
        print(f"{blob.name}  {blob.bytes:>12,} bytes")
    print(f"{len(found)} blobs, {_megabytes(found)}, {'would be removed' if dry_run else 'removed'}")


async def _look(log: Log, progress: Progress) -> tuple[list[Stored], Holders]:
    return await log.blobs.find(), await holders(log, progress)


def _with_log(where: Where, body: Callable[[Log, Progress], Awaitable[T]]) -> T:
    connection = where.connection()
    require_reachable(connection.address())
    with Console(stderr=True).status("reading the log") as status:

        def tell(topic: str, count: int) -> None:
            status.update(f"{'removing' if topic == 'blobs' else 'reading'} {topic}: {count}")

        async def run() -> T:
            async with open_log(connection.address(), connection.namespace, "blobs", blobs=connection.blob_root()) as log:
                return await body(log, tell)

        return anyio.run(run)


def _megabytes(blobs: list[Stored]) -> str:
    return f"{sum(blob.bytes for blob in blobs) / 1e6:,.1f} MB"
