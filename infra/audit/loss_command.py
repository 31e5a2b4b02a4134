"""`seamlessflow audit loss`: what was sampled and never trained, by reason, and whether length decides who is trained."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import orjson
from cyclopts import Parameter
from rich.console import Console
from rich.table import Table

from infra.audit.log import KafkaLog
from infra.audit.loss import Lengths, Loss
from infra.audit.verify import Audit
from infra.broker.admin import require_reachable
from infra.cli.where import AS_SET, Where


def loss(
    *,
    form: Annotated[Literal["json", "text"], Parameter(name=["-f", "--format"], help="text for people, json for programs.")] = "text",
    where: Where = AS_SET,
) -> None:
    """Show where sampled tokens went: trained, evaluated, still pending, or wasted, by reason; which sessions were dropped, and why.

    And whether length decides who is trained: the lengths of the trained sessions against those of all that were offered.
    """
    connection = where.connection()
    require_reachable(connection.address())
    with KafkaLog(connection.address(), connection.namespace) as log:
        found = Audit(log).loss()
    if form == "json":
        print(orjson.dumps(as_json(found), option=orjson.OPT_INDENT_2).decode())
    else:
        show(found, Console())


def as_json(found: Loss) -> dict[str, Any]:
    """Plain values."""
    plain = ("sampled", "trained", "evaluated", "pending", "wasted", "shares", "expired")
    said: dict[str, Any] = {name: getattr(found, name) for name in plain}
    said["dropped"] = {reason: dropped._asdict() for reason, dropped in found.dropped.items()}
    for name, lengths in (("offered", found.offered), ("trained_sessions", found.trained_sessions)):
        said[name] = {**lengths._asdict(), "quantiles": dict(lengths.quantiles)}
    return {**said, "length_ratio": found.length_ratio}


def show(found: Loss, console: Console) -> None:
    """Two tables and three lines."""
    tokens = Table("sampled tokens", "count", "share", title_justify="left")
    for name, count in [*_kept(found), *(("wasted: " + reason, count) for reason, count in found.wasted.items())]:
        tokens.add_row(name, str(count), f"{count / found.sampled:.1%}" if found.sampled else "")
    dropped = Table("dropped sessions", "sessions", "tokens")
    for reason, each in found.dropped.items():
        dropped.add_row(reason, str(each.sessions), str(each.tokens))
    console.print(tokens, dropped)
    for name, lengths in (("offered", found.offered), ("trained", found.trained_sessions)):
        console.print(f"tokens per session, {name}: {_said(lengths)}", soft_wrap=True)
    if found.length_ratio is not None:
        shares = ", ".join(f"{share:.0%}" for share in found.shares)
        quarters = f"; trained of the shortest to the longest quarter: {shares}" if shares else ""
        console.print(f"trained sessions are {found.length_ratio:.2f} times as long as those offered{quarters}", soft_wrap=True)
    if found.expired:
        console.print(f"the records of {found.expired} decided sessions have expired: they are not counted")


def _kept(found: Loss) -> list[tuple[str, int]]:
    return [("trained", found.trained), ("evaluated", found.evaluated), ("pending", found.pending)]


def _said(lengths: Lengths) -> str:
    if not lengths.sessions:
        return "no session"
    quantiles = ", ".join(f"{name} {value}" for name, value in lengths.quantiles.items())
    return f"{lengths.sessions} sessions, mean {lengths.mean:g}, {quantiles}"
