"""Dead letters settled: bytes put back where they stood, or given up; each together with the record that says so.

Bytes come back at the end of their partition, not at their old place. Whether that is sound depends on what order means in the topic:
- `scores`: the first `ok` Score of a rule counts, whatever stands between: sound, and without effect where the trajectory is decided;
- `trajectories`: readers take a Close that is not above the last one for a double (R6): sound while no later Close follows;
- `sessions`: order is the meaning. The fold went on without these bytes; a span that comes late ends its request as failed;
- `tasks`, `training`, `grants`: one writer each, which numbers and checks what it adds; a record that it did not write ends it;
- `nodes`: an old status would stand as the newest.

Invariants: the bytes and their Settlement are in one transaction; the letters are read after it has fenced every other operator, so a case
is settled once; what this software still cannot read is not written again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import anyio
import msgspec

from infra.cli.letters import Case, Letters
from infra.cli.peek import read_from
from schemas.deadletter import Settlement
from schemas.errors import BrokerUnavailable, LogError, OutcomeUnknown, Superseded
from schemas.topics import DEADLETTER, TOPICS, TRAJECTORIES
from schemas.trajectory import Trajectory
from streams.broker import Message, Outgoing, Transaction
from streams.codec import decode, encode
from streams.log import Log

__all__ = ["Outcome", "discard", "read_letters", "redrive", "refusal"]

ATTEMPTS = 5
PAUSE_S = 0.5
CHUNK = 100
"""Cases per transaction: an operator may have thousands, and each may hold a megabyte."""

ONE_WRITER = "has one writer, which numbers and checks what it adds, and would end at a record that it did not write"
UNSOUND = {
    "sessions": "order is the meaning of sessions: its readers went on without these bytes, and at the end they would mean something else "
    "(a span that comes late ends its request as failed)",
    "tasks": f"tasks {ONE_WRITER}",
    "training": f"training {ONE_WRITER}",
    "grants": f"grants {ONE_WRITER}",
    "nodes": "an old status would stand as the newest one; nodes report again by themselves",
}


class Outcome(NamedTuple):
    """What was done about one case: `did` is None where it was refused, and `why` says the reason."""

    case: Case
    did: str | None
    why: str = ""


Choose = Callable[[Letters], Sequence[Case]]
"""Which cases are meant, from the letters as they stand."""

Look = Callable[[Case], Awaitable[tuple[str, list[Outgoing]]]]
"""Why a case must not be settled (empty: it may), and what is to be written for it."""

How = Literal["redriven", "discarded"]


async def read_letters(log: Log) -> Letters:
    """All letters left, and what became of them."""
    start = await log.broker.starts([place := log.place(DEADLETTER, 0)])
    return Letters(await read_from(log, DEADLETTER, {0: start[place]}, committed=True))


async def refusal(log: Log, case: Case, closes: Mapping[int, int] | None = None) -> str:
    """Why these bytes must not be written again; empty where they may. `closes`: of trajectories from their offset on."""
    topic = TOPICS.get(case.origin.topic)
    if topic is None:
        return f"there is no topic {case.origin.topic}"
    if topic.name in UNSOUND:
        return UNSOUND[topic.name]
    try:
        record = decode(topic, await log.blobs.check_out(_message(case))).record
    except LogError as error:
        return f"this software cannot read them either: {error}"
    return _out_of_order(case, record.close, closes or {}) if isinstance(record, Trajectory) else ""


def _out_of_order(case: Case, close: int, closes: Mapping[int, int]) -> str:
    if closes.get(case.origin.offset) == close:
        return f"the trajectory itself stands in the log, at offset {case.origin.offset}, and its readers went past it"
    if any(other >= close for other in closes.values()):
        return f"trajectories of later Closes follow, and readers would take Close {close} for a double (R6)"
    return ""


async def redrive(log: Log, choose: Choose, reason: str) -> list[Outcome]:
    """Write the bytes of these cases again, each once, and say so.

    :raises BrokerUnavailable: the broker does not answer; what was done so far stands.
    """

    async def look(case: Case) -> tuple[str, list[Outgoing]]:
        why = await refusal(log, case, await _closes_from(log, case))
        return why, [] if why else [await log.blobs.check_in(_again(log, case))]

    return await _settle_all(log, choose, look, "redriven", reason)


async def discard(log: Log, choose: Choose, reason: str) -> list[Outcome]:
    """Give these cases up, and say why.

    :raises BrokerUnavailable: the broker does not answer; what was done so far stands.
    """

    async def look(case: Case) -> tuple[str, list[Outgoing]]:
        return "", []

    return await _settle_all(log, choose, look, "discarded", reason)


async def _settle_all(log: Log, choose: Choose, look: Look, how: How, reason: str) -> list[Outcome]:
    in_order = sorted(choose(await read_letters(log)), key=lambda case: case.origin)  # of one partition as they stood: R6 goes by order
    chosen = [case.id for case in in_order]
    outcomes: list[Outcome] = []
    for begin in range(0, len(chosen), CHUNK):
        outcomes += await _settle(log, chosen[begin : begin + CHUNK], look, how, reason)
    return outcomes


async def _settle(log: Log, chosen: Sequence[int], look: Look, how: How, reason: str) -> list[Outcome]:
    """One transaction; again where its outcome is unknown: then the letters tell."""
    for _ in range(ATTEMPTS):
        try:
            async with log.broker.transaction(log.group("deadletter")) as transaction:
                return await _attempt(log, transaction, chosen, look, Settlement(letter=-1, how=how, reason=reason))
        except (OutcomeUnknown, Superseded, BrokerUnavailable):
            await anyio.sleep(PAUSE_S)
    raise BrokerUnavailable("the letters could not be settled")


async def _attempt(
    log: Log, transaction: Transaction, chosen: Sequence[int], look: Look, settlement: Settlement
) -> list[Outcome]:
    letters = await read_letters(log)
    outcomes, messages = [], list[Outgoing]()
    for case in map(letters.find, chosen):
        if case.settlement is not None:
            outcomes.append(Outcome(case, case.state, "done before, nothing to do"))
            continue
        why, written = await look(case)
        outcomes.append(Outcome(case, None if why else settlement.how, why))
        if not why:
            messages += [*written, encode(log.name(DEADLETTER), 0, msgspec.structs.replace(settlement, letter=case.id))]
    if messages:
        await transaction.commit(messages)
    return outcomes


async def _closes_from(log: Log, case: Case) -> dict[int, int]:
    """Offset → Close of the trajectories from the case's offset on."""
    if case.origin.topic != TRAJECTORIES.name:
        return {}
    starts = await log.broker.starts([place := log.place(TRAJECTORIES, case.origin.partition)])
    found = await read_from(log, TRAJECTORIES, {case.origin.partition: max(starts[place], case.origin.offset)})
    return {entry.offset: entry.record.close for entry in found if isinstance(entry.record, Trajectory)}


def _again(log: Log, case: Case) -> Outgoing:
    """The message as it stood: topic, partition, key, value, headers."""
    letter = case.letter
    name = log.namespace + letter.topic
    return Outgoing(name, letter.partition, letter.original_key, letter.original_value, tuple(letter.original_headers.items()))


def _message(case: Case) -> Message:
    letter = case.letter
    headers = tuple(letter.original_headers.items())
    return Message(letter.topic, letter.partition, letter.offset, case.buried_ms, letter.original_key, letter.original_value, headers)
