"""Sessions over HTTP: opened, closed, described.

Invariants: an id is given away only after its Open was read back, the first one where a resend made two; closing answers with what stands
in the log, whoever closed first.
"""

from __future__ import annotations

import itertools
import secrets
from string import ascii_lowercase, digits
from typing import Any, TypeVar

import anyio
import msgspec

from schemas.identity import SessionId
from schemas.session import Close, Open
from schemas.task import Purpose
from schemas.topics import SESSIONS
from workers.gateway.calls import Calls
from workers.gateway.mirror import Ended
from workers.gateway.parameters import parse_object
from workers.gateway.placement import place
from workers.gateway.problems import invalid, unavailable
from workers.gateway.repeats import NONCE_BYTES
from workers.ledger import SessionState

Body = TypeVar("Body", bound=msgspec.Struct)

CHECK_LENGTH = 6
MAX_BODY_BYTES = 512 << 10
"""Largest body of an Open or Close: its payload travels in the record."""


class OpenBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `POST /v1/sessions` takes; all of it may be left out."""

    group: int | None = None
    member: int | None = None
    attempt: int = 0
    purpose: Purpose = "train"
    payload: dict[str, Any] = {}
    model: str | None = None
    partition: int | None = None


class CloseBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `POST /v1/sessions/{id}/close` takes."""

    outcome: str = "ok"
    reward: float | None = None


class Sessions:
    """Opens and closes through the log."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._turns = itertools.count(secrets.randbelow(len(calls.mirror.ledgers)))

    async def open(self, body: bytes, base_url: str) -> dict[str, Any]:
        """Open a session; answers its id and base URLs.

        :raises Problem: 400, the body is wrong; 503, the Open was not read back in time, or does not count.
        """
        wanted = _convert(body, OpenBody)
        record = self._record(wanted)
        partition = self._partition(wanted)
        session = await self._read_back(partition, record)
        session_id = SessionId(partition, session.offset, record.check)
        own = f"{base_url}/s/{session_id}"
        return {"id": str(session_id), "object": "session", "base_url": f"{own}/v1", "anthropic_base_url": own}

    async def close(self, text: str, body: bytes) -> dict[str, Any]:
        """Close a session; answers what stands.

        :raises Problem: 400, 404; 503, the Close was not read back in time.
        """
        wanted = _convert(body, CloseBody)
        session_id, found = await self._calls.session(text)
        if isinstance(found, SessionState) and found.is_open:
            record = Close(session=found.offset, nonce=secrets.token_bytes(NONCE_BYTES), outcome=wanted.outcome, reward=wanted.reward)
            await self._close(session_id, found, record)
        return await self.describe(text)

    async def describe(self, text: str) -> dict[str, Any]:
        """A session as the fold has it.

        :raises Problem: 404.
        """
        session_id, found = await self._calls.session(text)
        fields = {"id": str(session_id), "object": "session"}
        if isinstance(found, Ended):
            said = {"outcome": found.outcome, "reward": found.reward, "requests": found.requests}
            return {**fields, "state": "ended", "ended_by": found.how, **said}
        opened = found.record
        said = {name: getattr(opened, name) for name in ("purpose", "group", "member", "attempt", "model")}
        return {**fields, "state": "open", **said, "requests": len(found.requests), "running": sum(1 for _ in found.running())}

    def _record(self, wanted: OpenBody) -> Open:
        settings = self._calls.settings
        check = "".join(secrets.choice(ascii_lowercase + digits) for _ in range(CHECK_LENGTH))
        return Open(
            nonce=secrets.token_bytes(NONCE_BYTES), check=check, purpose=wanted.purpose, group=wanted.group, member=wanted.member,
            attempt=wanted.attempt, payload=wanted.payload, model=wanted.model or settings.model, gateway=settings.name,
        )

    def _partition(self, wanted: OpenBody) -> int:
        count = len(self._calls.mirror.ledgers)
        if wanted.partition is None:
            return place(wanted.group, next(self._turns) if wanted.group is None else 0, count)
        if not 0 <= wanted.partition < count:
            raise invalid(f"partition {wanted.partition} is none of the {count} partitions", "partition")
        return wanted.partition

    async def _read_back(self, partition: int, record: Open) -> SessionState:
        mirror = self._calls.mirror
        opening = mirror.expect_open(record.nonce)
        try:
            with anyio.move_on_after(self._calls.settings.answer_s):
                await self._calls.writer.send(SESSIONS, partition, record)
                await opening.read_back.wait()
        finally:
            mirror.forget_open(record.nonce)
        if opening.session is None and opening.read_back.is_set():
            raise unavailable(f"nothing in partition {partition} counts before its next owner begins it anew; open another session")
        if opening.session is None:
            raise unavailable("the Open was not read back in time; it stays empty, open another session")
        return opening.session

    async def _close(self, session_id: SessionId, session: SessionState, record: Close) -> None:
        with anyio.move_on_after(self._calls.settings.answer_s) as scope:
            await self._calls.writer.send(SESSIONS, session_id.partition, record)
            await self._calls.mirror.end_of(session)
        if scope.cancelled_caught:
            raise unavailable("the Close was not read back in time; close again")


def _convert(body: bytes, kind: type[Body]) -> Body:
    try:
        return msgspec.convert(parse_object(body) if body else {}, kind)
    except msgspec.ValidationError as error:
        raise invalid(str(error)) from None
