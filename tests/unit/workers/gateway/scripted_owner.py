"""An owner of all partitions whose answers a test chooses; and a gateway in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskStatus

from models.chat import CharacterChat
from schemas.arrays import pack_f4, pack_i4
from schemas.session import Claim, Sampling
from schemas.span import Finish, Span
from schemas.topics import SESSIONS
from streams.log import Log, RecordWriter
from streams.service import Watch
from workers.gateway.service import role
from workers.gateway.settings import GatewaySettings
from workers.ledger import Claimed, Ledger, Requested, RequestState, SessionState

CHAT = CharacterChat()
END = CHAT.stop_token_ids[0]

Script = Callable[[list[int], Sampling], Sequence[Sequence[int]]]
"""Prompt ids and sampling to the tokens of each span; the last span ends by `stop` if its last token is the end token, else by `length`."""


def say(text: str) -> list[int]:
    """The tokens of a text and the end token."""
    return [*CHAT.encode(text), END]


def always(text: str) -> Script:
    """The same answer to everything, in one span."""
    return lambda prompt, sampling: [say(text)]


def spans(session: int, request: int, epoch: int, parts: Sequence[Sequence[int]], version: int = 3) -> list[Span]:
    """Counted one after another, these end a request. The logprob of token t is −t/100; versions grow by one from span to span."""
    found, start = [], 0
    for number, part in enumerate(parts):
        last: Finish = "stop" if part[-1] == END else "length"
        found.append(
            Span(
                session=session, request=request, epoch=epoch, start=start, tokens=pack_i4(part), logprobs=pack_f4(-t / 100 for t in part),
                version=version + number, kv_version=version + number, finish=last if number == len(parts) - 1 else None,
            )
        )
        start += len(part)
    return found


async def own(log: Log, script: Script, epoch: int = 7, *, task_status: TaskStatus[None]) -> None:
    """Claim all partitions, continue what runs (from the start: for tests, nothing is ever half done), answer what comes."""
    ledgers = {place.partition: Ledger() for place in await log.places(SESSIONS)}
    async with log.writer() as writer, log.follow_all(SESSIONS) as reader:
        for partition in ledgers:
            await (await writer.send(SESSIONS, partition, Claim(epoch=epoch, node="scripted", incarnation="i")))
        task_status.started()
        while True:
            for entry in await reader.read(timeout_s=1.0):
                ledger = ledgers[entry.partition]
                change = ledger.apply(entry.offset, entry.record)
                waiting: list[tuple[SessionState, RequestState]] = []
                if isinstance(change, Claimed) and ledger.epoch == epoch:
                    waiting = ledger.unfinished()
                elif isinstance(change, Requested) and ledger.epoch == epoch and change.request.end is None:
                    waiting = [(change.session, change.request)]
                for session, request in waiting:
                    await _answer(writer, entry.partition, epoch, script, session, request)


async def _answer(
    writer: RecordWriter, partition: int, epoch: int, script: Script, session: SessionState, request: RequestState
) -> None:
    for span in spans(session.offset, request.offset, epoch, script(request.prompt_ids(), request.record.sampling)):
        await writer.send(SESSIONS, partition, span)


@asynccontextmanager
async def owned(log: Log, script: Script, epoch: int = 7) -> AsyncIterator[None]:
    """`own` for the length of a context."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(own, log, script, epoch)
        yield
        tasks.cancel_scope.cancel()


def settings_for(folder: Path, **settings: Any) -> GatewaySettings:
    """Settings with the demo's tokenizer; the address is written into the folder."""
    folder.mkdir(exist_ok=True)
    CHAT.save(folder)
    return GatewaySettings(**{"model_dir": folder, "address_file": folder / "address", "drain_s": 0, **settings})


def _address(folder: Path) -> str:
    return (folder / "address").read_text().strip()


@asynccontextmanager
async def gateway(log: Log, folder: Path, **settings: Any) -> AsyncIterator[str]:
    """A gateway until its clean stop; yields its base address."""
    async with anyio.create_task_group() as tasks:
        await tasks.start(role(settings_for(folder, **settings)), log, Watch())
        yield _address(folder)
        tasks.cancel_scope.cancel()
