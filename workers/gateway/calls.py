"""The life of a call: rendered, written as a Request, and then what the fold says of it, until its end or until the agent leaves.

Invariants: nothing is answered that the fold did not count; the acknowledgement of the Request is not waited for, reading it says more;
a call that ends before its request does leaves a Cancel, unless another call waits for the same request; no call waits longer than `hold_s`
without a new token; a call that is made again waits for the request that stands in the log already (`workers.gateway.repeats`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic

import anyio
import msgspec

from models.chat import Chat
from schemas.errors import BlobStoreUnavailable, BrokerUnavailable
from schemas.identity import SessionId
from schemas.session import Request, Sampling
from schemas.topics import SESSIONS
from streams.log import Log, RecordWriter
from workers.gateway.completions import Heading
from workers.gateway.departure import ClientLeft
from workers.gateway.latency import Latency
from workers.gateway.mirror import Ended, Mirror, Waiter
from workers.gateway.parameters import Message, Parameters
from workers.gateway.problems import Problem, cancelled, failed, invalid, key_reused, session_ended, unavailable, unknown_session
from workers.gateway.render import Prompt
from workers.gateway.repeats import Repeat, is_cancelled, means_the_same, undelivered, with_nonce
from workers.gateway.settings import GatewaySettings
from workers.ledger import RequestState, SessionState


@dataclass(frozen=True, slots=True)
class Calls:
    """What calls need; one for all."""

    settings: GatewaySettings
    log: Log
    mirror: Mirror
    writer: RecordWriter
    chat: Chat
    latency: Latency = field(default_factory=Latency)

    async def session(self, text: str) -> tuple[SessionId, SessionState | Ended]:
        """The session with this id; the log is read to its end before it is said not to exist.

        :raises Problem: 404.
        """
        session_id = parse_id(text)
        found = self.mirror.find(session_id)
        if found is None and session_id.partition in self.mirror.ledgers:
            await self._read_to_end(session_id.partition)
            found = self.mirror.find(session_id)
        if found is None:
            raise unknown_session(text)
        return session_id, found

    async def open_session(self, text: str) -> tuple[SessionId, SessionState]:
        """As `session`, where it must be open.

        :raises Problem: 404, or 410 where it has ended.
        """
        session_id, found = await self.session(text)
        if isinstance(found, Ended) or not found.is_open:
            raise session_ended(text)
        return session_id, found

    async def begin(self, text: str, parameters: Parameters, repeat: Repeat, received: float) -> Call:
        """Render the messages and register the call. Nothing is written yet. `received` is the time of the call by `time.monotonic`.

        :raises Problem: 4xx, the session or the messages cannot be used.
        """
        session_id, session = await self.open_session(text)
        if repeat.was_tried:
            await self._refresh(session_id, session)  # the try before may have come through another gateway
        prompt = await self._render(session_id, session, parameters.messages)
        wanted = Request(
            session=session.offset, nonce=b"", tokens=prompt.tokens, sampling=self._sampling(prompt, parameters), stream=parameters.stream,
            base=None if prompt.base is None else prompt.base.offset, base_length=prompt.base_length,
        )
        nonces = repeat.nonces()
        if not repeat.key and (earlier := self._earlier(session_id, session, prompt, wanted.sampling, repeat)) is not None:
            nonces = itertools.chain([earlier.record.nonce], nonces)
        return Call(self, session_id, session, wanted, nonces, prompt.messages, received)

    def _earlier(
        self, session_id: SessionId, session: SessionState, prompt: Prompt, sampling: Sampling, repeat: Repeat
    ) -> RequestState | None:
        """A recorded request that stands for this call. A call that does not say that it was tried before gets only what an earlier life of
        this gateway left behind: another gateway's may have somebody who waits."""
        same = prompt.same
        if not repeat.was_tried:
            is_own = session.record.gateway == self.settings.name
            same = [request for request in same if is_own and self.mirror.is_inherited(session_id.partition, request)]
        return undelivered(same, sampling, self.mirror.serve(session).taken, was_tried=repeat.was_tried)

    def expect(self, session_id: SessionId, session: SessionState, wanted: Request, nonces: Iterator[bytes]) -> tuple[Request, Waiter]:
        """Register under the first nonce whose request, if there is one, was not cancelled; answers the Request as it is to be written.

        :raises Problem: 422, this request has other contents.
        """
        for nonce in nonces:
            request = with_nonce(session, nonce)
            if request is not None and is_cancelled(request):
                continue
            if request is not None and not means_the_same(request, session, wanted):
                raise key_reused()
            waiter = self.mirror.expect_request(session_id.partition, session, nonce, wanted.stream, request)
            return msgspec.structs.replace(wanted, nonce=nonce), waiter
        raise AssertionError("nonces never end")

    async def _render(self, session_id: SessionId, session: SessionState, messages: list[Message]) -> Prompt:
        """Another gateway may have served the turn before: an unknown assistant message is looked for at the end of the log."""
        prompt = self.mirror.serve(session).conversation.prompt(session, messages)
        if prompt.stranger is None:
            return prompt
        await self._refresh(session_id, session)
        return self.mirror.serve(session).conversation.prompt(session, messages)

    async def _refresh(self, session_id: SessionId, session: SessionState) -> None:
        """Read all that stands now.

        :raises Problem: 503, it could not be read; 410, the session has ended.
        """
        await self._read_to_end(session_id.partition)
        if not session.is_open:
            raise session_ended(str(session_id))

    async def _read_to_end(self, partition: int) -> None:
        with anyio.move_on_after(self.settings.answer_s):
            try:
                return await self.mirror.read_to_end(self.log, [partition])
            except BrokerUnavailable:
                pass  # answered like a broker that is slow: the agent may try again
        raise unavailable("the log could not be read to its end in time")

    def _sampling(self, prompt: Prompt, parameters: Parameters) -> Sampling:
        room = self.settings.context_tokens - prompt.length
        wanted = parameters.max_tokens
        if room < 1 or (wanted is not None and wanted > room):
            asked = f"{prompt.length} tokens in the messages" + ("" if wanted is None else f" and {wanted} in the completion")
            message = f"the context is {self.settings.context_tokens} tokens, and the call asks for {asked}"
            raise invalid(message, "messages", "context_length_exceeded")
        return Sampling(
            max_tokens=min(room, self.settings.default_max_tokens) if wanted is None else wanted,
            temperature=parameters.temperature, seed=parameters.seed, stop_token_ids=self.chat.stop_token_ids,
        )


class Call:
    """One call. Used inside `running()`, which leaves a Cancel if the call ends first."""

    def __init__(
        self, calls: Calls, session_id: SessionId, session: SessionState, wanted: Request, nonces: Iterator[bytes],
        messages: list[Message], received: float,
    ) -> None:  # fmt: skip
        self._calls, self._session_id, self._session, self._nonces = calls, session_id, session, nonces
        self._messages, self._received = messages, received
        self._request, self._waiter = calls.expect(session_id, session, wanted, nonces)
        self._has_joined = self._waiter.request is not None
        self._has_left = False
        self._reason = "client left"

    @contextmanager
    def running(self) -> Iterator[None]:
        """The call is over when this is left."""
        try:
            yield
        finally:
            self._calls.mirror.leave(self._waiter, self._reason)

    def client_left(self) -> None:
        """The client left: whoever waits for this call gives up."""
        self._has_left = True
        self._waiter.wake()

    async def write(self) -> None:
        """Hand the Request to the log, unless it stands there.

        :raises Problem: 503, its prompt is large, and the blob store does not answer.
        """
        if self._has_joined:
            return
        try:
            await self._calls.writer.send(SESSIONS, self._session_id.partition, self._request)
        except BlobStoreUnavailable as error:
            raise unavailable(f"the prompt could not be stored: {error}") from error

    async def end(self) -> RequestState:
        """Wait for the end of the request.

        :raises Problem: it failed or was cancelled (422), its session was closed (410), nothing came for `hold_s` or the gateway
            stops (503).
        :raises ClientLeft: the client left.
        """
        while not self._waiter.is_over() or await self._begins_anew():
            await self._news(self._calls.settings.hold_s)
        return self._ended()

    async def parts(self) -> AsyncIterator[RequestState | None]:
        """The request each time that it has gained tokens, and once when it has ended; None after `keepalive_s` of silence.

        :raises Problem: as `end`.
        """
        shown = 0
        while not self._waiter.is_over() or (not shown and await self._begins_anew()):
            request = self._waiter.request
            if request is not None and request.accepted > shown:
                shown = request.accepted
                yield request
            elif not await self._news(self._calls.settings.keepalive_s):
                yield None
        yield self._ended()

    def heading(self, request: RequestState) -> Heading:
        """What all parts of the answer share."""
        model = self._calls.settings.model
        return Heading(self._session_id.partition, str(self._session_id), request, model, int(time.time()))

    def timing_ms(self) -> dict[str, float]:
        """By the gateway's clock, since the call was received: its Request was readable, its first span was, the answer is."""
        moments = {
            "readable": self._waiter.readable_at, "first_span": self._waiter.first_span_at, "answered": monotonic(),
        }
        return {name: round((at - self._received) * 1000, 3) for name, at in moments.items() if at is not None}

    async def _begins_anew(self) -> bool:
        """The call had joined a request that its first writer then cancelled: write one of its own."""
        request = self._waiter.request
        if not (self._has_joined and self._session.is_open and request is not None and is_cancelled(request)):
            return False
        self._calls.mirror.leave(self._waiter, self._reason)
        self._request, self._waiter = self._calls.expect(self._session_id, self._session, self._request, self._nonces)
        self._has_joined = self._waiter.request is not None
        await self.write()
        return True

    async def _news(self, limit_s: float) -> bool:
        """Wait for news for at most `limit_s`; answers whether there are any.

        :raises Problem: 503, nothing has come for `hold_s`, or the gateway stops.
        :raises ClientLeft: the client left.
        """
        if self._has_left:
            raise ClientLeft
        if self._calls.mirror.is_dismissed:
            self._reason = "gateway stops"
            raise unavailable("this gateway stops: call again")
        held_until = self._waiter.progress_at + self._calls.settings.hold_s
        left_s = held_until - monotonic()
        if left_s <= 0:
            self._reason = "held too long"
            held = f"no token came for {self._calls.settings.hold_s:.0f} s: nobody owns the partition, or it is paused"
            raise unavailable(f"{held}; `seamlessflow status` says which")
        with anyio.move_on_after(min(limit_s, left_s)):
            await self._waiter.news()
            return True
        return False

    def _ended(self) -> RequestState:
        request = self._waiter.request
        if request is None or request.end is None:
            raise session_ended(str(self._session_id))
        served = self._calls.mirror.serve(self._waiter.session) if self._waiter.session.is_open else None
        if served is not None:
            served.conversation.remember(self._messages, request)
        problem = _problem(str(self._session_id), request)
        if problem is not None:
            raise problem
        if self._has_joined:  # the engine began before the call did
            return request
        self._calls.latency.add((monotonic() - self._received) * 1000, request.engine_ms)
        return request


def parse_id(text: str) -> SessionId:
    """A session's id.

    :raises Problem: 404, this is none.
    """
    try:
        return SessionId.parse(text)
    except ValueError:
        raise unknown_session(text) from None


def _problem(session: str, request: RequestState) -> Problem | None:
    assert request.end is not None
    match request.end.why:
        case "failed":
            return failed(request.detail)
        case "cancelled":
            return cancelled(request.detail)
        case "closed":
            return session_ended(session)
        case "stop" | "length":
            return None
