"""A call that is made again: which recorded request stands for it. Pure.

A gateway that dies takes its agents' connections along, and not their requests: these go on in the log. Clients try again by themselves, so
the same call may come twice. What is generated already is answered, never generated a second time beside it.

Invariants:
- only a request with the same prompt, token by token, and the same sampling stands for a call, and none that was cancelled;
- without an Idempotency-Key it is one that no call of this gateway ever waited for: an agent that asks twice draws twice;
- calls of one session with one key have one request that counts, whichever gateways they come through: its nonce is made from the key.
"""

from __future__ import annotations

import hashlib
import itertools
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from schemas.session import Request, Sampling
from workers.ledger import RequestState, SessionState

__all__ = ["FIRST", "NONCE_BYTES", "Repeat", "is_cancelled", "means_the_same", "repeat_of", "undelivered", "with_nonce"]

NONCE_BYTES = 12

KEY_HEADER, RETRY_HEADER = b"idempotency-key", b"x-stainless-retry-count"
"""Which call this is, in the client's words; and how often the openai clients tried it before."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """What a call says of itself: its `key`, if it has one, and whether it `was_tried` before."""

    key: bytes = b""
    was_tried: bool = False

    def nonces(self) -> Iterator[bytes]:
        """Nonces for the call's Request: another one each time that a request was cancelled. With a key everyone makes the same."""
        for count in itertools.count():
            if self.key:
                yield hashlib.sha256(b"%d:%s" % (count, self.key)).digest()[:NONCE_BYTES]
            else:
                yield secrets.token_bytes(NONCE_BYTES)


FIRST = Repeat()
"""A call that says nothing."""


def repeat_of(headers: Iterable[tuple[bytes, bytes]]) -> Repeat:
    """What the headers of a call (names in lower case) say."""
    key, was_tried = b"", False
    for name, value in headers:
        if name == KEY_HEADER:
            key = value
        elif name == RETRY_HEADER:
            was_tried = value.isdigit() and int(value) > 0
    return Repeat(key, was_tried) if key or was_tried else FIRST


def is_cancelled(request: RequestState) -> bool:
    """Its tokens are nobody's answer."""
    return request.end is not None and request.end.why == "cancelled"


def with_nonce(session: SessionState, nonce: bytes) -> RequestState | None:
    """The request of a session that has this nonce."""
    if nonce not in session.nonces:
        return None
    return next(request for request in session.requests.values() if request.record.nonce == nonce)


def means_the_same(request: RequestState, session: SessionState, wanted: Request) -> bool:
    """Whether a recorded request has the prompt and the sampling of one that is not written yet."""
    if request.record.sampling != wanted.sampling:
        return False
    above = b"" if wanted.base is None else session.requests[wanted.base].sequence(wanted.base_length)
    return request.sequence(request.prompt_length) == above + wanted.tokens


def undelivered(same: Sequence[RequestState], sampling: Sampling, taken: set[bytes], *, was_tried: bool) -> RequestState | None:
    """Which request stands for a call without a key. `same`: those with its prompt, oldest first; `taken`: nonces that calls waited for.

    The oldest that runs; for a call that was tried before also the newest that ended, because its answer may have been lost on the way.
    """
    free = [each for each in same if each.record.nonce not in taken and each.record.sampling == sampling and not is_cancelled(each)]
    running = [each for each in free if each.end is None]
    if running:
        return running[0]
    return free[-1] if free and was_tried else None
