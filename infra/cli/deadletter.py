"""`deadletter list | show | redrive | discard`: what could not be used, and what is done about it."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from infra.cli.letters import Case, Letters
    from infra.cli.redrive import Choose, Outcome
    from streams.log import Log

T = TypeVar("T")

Form = Annotated[Literal["json", "text"], Parameter(name=["-f", "--format"], help="text for people, json for programs.")]
Everything = Annotated[bool, Parameter(name="--all", negative="")]
Matching = Annotated[str, Parameter(help="Only letters whose reason contains this text.")]

REFUSED = 1
"""Exit code where something that was asked for was not done."""


def list_letters(*, everything: Everything = False, matching: Matching = "", form: Form = "text", where: Where = AS_SET) -> None:
    """List the open dead letters, one line each: its ID, when, where the bytes stood, what they said to be, who buried them, why.

    Parameters
    ----------
    everything
        Also those that were re-driven or discarded.
    """
    cases = _letters(where).cases(everything=everything, matching=matching)
    if form == "json":
        _print_json([described(case) for case in cases])
        return
    for case in cases:
        print(line(case))
    if not cases:
        print("no dead letters" if everything else "no open dead letters")


def show(letter: int, /, *, form: Form = "text", where: Where = AS_SET) -> None:
    """Show one dead letter with its bytes, as far as they can be read, and what became of it. Exit code 2: there is none.

    Parameters
    ----------
    letter
        Its ID.
    """
    from infra.cli.readable import printable, readable_payload

    case = _letters(where).find(letter)
    said = {
        **described(case),
        "key": printable(case.letter.original_key),
        "headers": {name: printable(value) for name, value in case.letter.original_headers.items()},
        "value": readable_payload(case.letter.original_value, list(case.letter.original_headers.items())),
    }
    if form == "json":
        _print_json(said)
        return
    for name, value in said.items():
        print(f"{name:11} {value}")


def redrive(
    *letters: int,
    everything: Annotated[bool, Parameter(name="--all", negative="", help="All open ones.")] = False,
    matching: Matching = "",
    reason: Annotated[str, Parameter(help="Why it may work now; stands in the log.")] = "",
    where: Where = AS_SET,
) -> int:
    """Write the bytes of dead letters again: same topic, partition, key, value, headers. A letter that was settled before is left alone.

    Exit code 1: at least one was refused, with the reason: where order is the meaning, bytes at the end would mean something else.

    Parameters
    ----------
    letters
        Their IDs.
    """
    from infra.cli.redrive import redrive as act

    return _act(act, _choice(letters, everything, matching), reason, where)


def discard(
    *letters: int,
    reason: Annotated[str, Parameter(help="Why nobody needs them; stands in the log.")],
    everything: Annotated[bool, Parameter(name="--all", negative="", help="All open ones.")] = False,
    matching: Matching = "",
    where: Where = AS_SET,
) -> int:
    """Give dead letters up: they are no longer listed as open. Their bytes stay until retention takes them.

    Parameters
    ----------
    letters
        Their IDs.
    """
    from infra.cli.redrive import discard as act

    return _act(act, _choice(letters, everything, matching), reason, where)


def described(case: Case) -> dict[str, Any]:
    """A case as plain data."""
    settlement = case.settlement
    return {
        "id": case.id, "letters": case.ids, "state": case.state, "buried_ms": case.buried_ms, **case.origin._asdict(),
        "type": case.type_name, "readers": case.readers, "reason": case.letter.reason, "size_bytes": len(case.letter.original_value),
        "settled_because": None if settlement is None else settlement.reason,
    }  # fmt: skip


def line(case: Case) -> str:
    """A case for people."""
    at = datetime.fromtimestamp(case.buried_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    because = f" because {case.settlement.reason}" if case.settlement is not None and case.settlement.reason else ""
    state = "" if case.settlement is None else f" ({case.state}{because})"
    return f"{case.id:6} {at} {case.origin} {case.type_name} by {', '.join(case.readers)}: {case.letter.reason}{state}"


def _choice(letters: Sequence[int], everything: bool, matching: str) -> Choose:
    """:raises UsageError: neither IDs nor --all, or both."""
    from schemas.errors import UsageError

    if bool(letters) == everything:
        raise UsageError("name the IDs of dead letters, or --all: `seamlessflow deadletter list` shows them")

    def choose(known: Letters) -> list[Case]:
        if everything:
            return known.cases(matching=matching)
        return list({case.id: case for case in map(known.find, letters) if matching in case.letter.reason}.values())

    return choose


def _act(act: Callable[[Log, Choose, str], Awaitable[list[Outcome]]], choose: Choose, reason: str, where: Where) -> int:
    outcomes = _with_log(where, lambda log: act(log, choose, reason))
    for outcome in outcomes:
        said = outcome.did or "refused"
        print(f"{outcome.case.id:6} {outcome.case.origin} {said}" + (f": {outcome.why}" if outcome.why else ""))
    if not outcomes:
        print("no open dead letters")
    return REFUSED if any(outcome.did is None for outcome in outcomes) else 0


def _letters(where: Where) -> Letters:
    from infra.cli.redrive import read_letters

    return _with_log(where, read_letters)


def _with_log(where: Where, act: Callable[[Log], Awaitable[T]]) -> T:
    import anyio

    from infra.broker.admin import require_reachable
    from infra.cli.run import open_log
    from schemas.errors import TopicMismatch
    from schemas.topics import DEADLETTER

    connection = where.connection()
    require_reachable(connection.address())

    async def body() -> T:
        async with open_log(connection.address(), connection.namespace, "operator", blobs=connection.blob_root()) as log:
            if not await log.broker.partitions(log.name(DEADLETTER)):
                raise TopicMismatch(f"{log.name(DEADLETTER)} does not exist")
            return await act(log)

    return anyio.run(body)


def _print_json(said: dict[str, Any] | Iterable[dict[str, Any]]) -> None:
    import orjson

    sys.stdout.write(orjson.dumps(said, option=orjson.OPT_INDENT_2).decode() + "\n")
