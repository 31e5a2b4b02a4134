"""`pause`, `resume`, `drain`, `undrain`: an operator's wish, and the wait until it holds."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

Reason = Annotated[str, Parameter(help="Why, for whoever looks at the log later.")]
Wait = Annotated[float, Parameter(help="Seconds until the wait is given up (exit code 40); the wish stands all the same.")]

WAIT_S = 60.0


def pause(*, reason: Reason = "", wait_s: Wait = WAIT_S, where: Where = AS_SET) -> None:
    """Take every partition from its owner. Running calls are held, not failed, and go on where they were after `resume`."""
    _ask("pause", "", reason, wait_s, where)


def resume(*, reason: Reason = "", wait_s: Wait = WAIT_S, where: Where = AS_SET) -> None:
    """End a pause: every partition gets an owner again."""
    _ask("resume", "", reason, wait_s, where)


def drain(node: str, /, *, reason: Reason = "", wait_s: Wait = WAIT_S, where: Where = AS_SET) -> None:
    """Move everything away from a node, and give it nothing new, until `undrain`.

    Parameters
    ----------
    node
        Its name, such as rollout-0.
    """
    _ask("drain", node, reason, wait_s, where)


def undrain(node: str, /, *, reason: Reason = "", wait_s: Wait = WAIT_S, where: Where = AS_SET) -> None:
    """Let a drained node have partitions again.

    Parameters
    ----------
    node
        Its name, such as rollout-0.
    """
    _ask("undrain", node, reason, wait_s, where)


def _ask(command: str, node: str, reason: str, wait_s: float, where: Where) -> None:
    import anyio
    import msgspec

    from infra.broker.admin import require_reachable
    from infra.cli.run import open_log
    from infra.cli.wish import carry_out
    from schemas.node import Control

    connection = where.connection()
    require_reachable(connection.address())
    control = msgspec.convert({"command": command, "node": node, "reason": reason}, Control)

    async def body() -> None:
        async with open_log(connection.address(), connection.namespace, "cli") as log:
            print(await carry_out(log, control, wait_s))

    anyio.run(body)
