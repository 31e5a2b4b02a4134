"""Defects, each planted in one named place of the product: a simulation that does not catch them would not catch others either.

Each is a patch of this process alone, for the length of a context. Invariant: a name says which rule is broken; the patched function is the
product's own in all but that.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec

from schemas.identity import Position
from schemas.record import Record
from schemas.session import Claim, Close, Request
from schemas.span import Span
from schemas.training import Watermark
from streams import cas, writer
from streams.broker import Outgoing
from streams.codec import Entry
from streams.memory import MemoryTransaction
from streams.writer import Receipt
from trainer import recover
from trainer.feed.groups import Group
from trainer.feed.join import Item
from trainer.feed.watermarks import PartitionProgress
from workers import intake, ledger
from workers.assembler import deadlines
from workers.assembler.partition import HeldPartition
from workers.assembler.service import Assembler
from workers.ledger import Change, Claimed, Ledger, SessionState
from workers.rollout import owner, spans
from workers.rollout import service as rollout
from workers.rollout.engines.base import Emission
from workers.rollout.holdings import Holding

Patches = list[tuple[Any, str, Any]]


def _newest_claim(self: Ledger, offset: int, claim: Claim) -> Change | None:
    self.epoch = claim.epoch
    return Claimed(claim, [])


def _live_at_once(partition: int, epoch: int, fold: Ledger) -> Holding:
    return Holding(partition, epoch, fold, is_live=True)


def _is_live_already(self: owner.Owner, holding: Holding) -> None:
    """Its requests were offered when they were read."""


async def _no_news(self: cas.CasLog) -> list[Entry[Record]]:
    return []


def _stage_some(self: MemoryTransaction, messages: Sequence[Outgoing]) -> list[int]:
    """One of several messages is lost, and the transaction commits all the same: nobody had waited for its acknowledgement."""
    kept = list(messages[:-1]) if len(messages) > 1 and messages[-1].value and messages[-1].value[-1] % 3 == 0 else list(messages)
    return [*_staged(self, kept), *[0] * (len(messages) - len(kept))]


_staged = MemoryTransaction.stage


async def _send_out_of_order(self: Assembler, partition: int, session: SessionState) -> Receipt:
    """The Trajectory of every third session waits for that of the next one."""
    held: dict[int, SessionState] = self.__dict__.setdefault("held_back", {})
    if session.offset % 3 == 0 and partition not in held:
        held[partition] = session
        return Receipt(Outgoing("", 0, b"", b""))
    receipt = await _send(self, partition, session)
    if partition in held:
        await _send(self, partition, held.pop(partition))
    return receipt


_send = Assembler._send


def _take_repeated(self: PartitionProgress, offset: int, close: int) -> bool:
    return _take(self, offset, self._close + 1)


_take = PartitionProgress.take


def _request_again(session: SessionState, offset: int, record: Request) -> Any:
    session.nonces.clear()
    return _request(session, offset, record)


_request = ledger._request


def _settle_all(self: Group, item: Item) -> None:
    """A later attempt gets a slot of its own."""
    item.member += 100 * (item.member in self.slots)
    _settle(self, item)


_settle = Group.settle


def _span_mutated(*, any_epoch: bool = False, any_start: bool = False, after_end: bool = False) -> Callable[..., Change | None]:
    def take(self: Ledger, session: SessionState, offset: int, span: Span) -> Change | None:
        request = session.requests.get(span.request)
        if request is None:
            return None
        if after_end:
            request.end = None
        if any_start and request.end is None and span.epoch == self.epoch:
            return ledger._extend(session, request, offset, span)
        if any_epoch:
            span = msgspec.structs.replace(span, epoch=self.epoch)
        return _span(self, session, offset, span)

    return take


_span = Ledger._span


def _watermark_without_close(self: PartitionProgress) -> Watermark:
    return msgspec.structs.replace(_watermark(self), close=-1)


def _watermark_as_read(self: PartitionProgress) -> Watermark:
    return msgspec.structs.replace(_watermark(self), trajectory=self.next, decided=[], close=self._close, score=self.next_score)


_watermark = PartitionProgress.watermark


def _position_as_read(self: Ledger) -> Position:
    return Position(self.next, self.epoch)


def _position_with_the_epoch_of_now(self: Ledger) -> Position:
    return Position(_position(self).offset, self.epoch)


_position = Ledger.position


def _forget_unacknowledged(self: HeldPartition, session: SessionState, receipt: Receipt) -> None:
    self.ledger.forget(session)


def _close_whatever_followed(session: SessionState, offset: int, close: Close) -> Any:
    return _close(session, offset, msgspec.structs.replace(close, seen=offset))


_close = ledger._close


def _idle_while_running(self: deadlines.Deadlines, now_s: float) -> Iterator[Close]:
    while self._silent:
        session, since_s = next(iter(self._silent.values()))
        if now_s - since_s < 0.3:
            return
        del self._silent[session.offset]
        yield Close(session=session.offset, outcome="idle", idle=True, seen=session.last)


async def _resend_nothing(self: writer.Writer, producer: Any) -> None:
    self._pending.clear()
    self._bytes = 0
    await _resend(self, producer)


_resend = writer.Writer._resend


def _absorb_whatever_version(self: spans.SpanBuffers, emission: Emission, buffer: Any, now: float) -> list[spans.OwnedSpan]:
    if buffer.tokens:
        buffer.versions = (emission.version, emission.kv_version)
    return _absorb(self, emission, buffer, now)


_absorb = spans.SpanBuffers._absorb


async def _train_nothing_again(*arguments: Any) -> AsyncIterator[Any]:
    for step in ():
        yield step


def _same_incarnation(count: int) -> str:
    return "0" * (2 * count)


def _done_when_begun(self: intake.LowWatermark, offset: int) -> None:
    self._next = offset + 1


class _SameIncarnation:
    token_hex = staticmethod(_same_incarnation)


PATCHES: dict[str, Patches] = {
    "newest instead of greatest Claim": [(Ledger, "_claim", _newest_claim)],
    "generate before the own Claim is read": [(owner, "Holding", _live_at_once), (owner.Owner, "_go_live", _is_live_already)],
    "spans of any epoch count": [(Ledger, "_span", _span_mutated(any_epoch=True))],
    "a restart keeps its incarnation": [(rollout, "secrets", _SameIncarnation)],
    "any start is accepted": [(Ledger, "_span", _span_mutated(any_start=True))],
    "a writer resends nothing": [(writer.Writer, "_resend", _resend_nothing)],
    "a span after the end counts": [(Ledger, "_span", _span_mutated(after_end=True))],
    "an idle Close ignores what followed": [(ledger, "_close", _close_whatever_followed)],
    "an idle Close while a request runs": [(deadlines.Deadlines, "_idle", _idle_while_running)],
    "nonces are not compared": [(ledger, "_request", _request_again)],
    "a Position without its epoch": [(Position, "metadata", lambda self: "epoch=-1;")],
    "a Position with the epoch of now": [(Ledger, "position", _position_with_the_epoch_of_now)],
    "a Position at the read end": [(Ledger, "position", _position_as_read)],
    "Trajectories out of Close order": [(Assembler, "_send", _send_out_of_order)],
    "a Position passes an unacknowledged Trajectory": [(HeldPartition, "sent", _forget_unacknowledged)],
    "an offset passes what is not done": [(intake.LowWatermark, "begin", _done_when_begun)],
    "repeated Trajectories are new": [(PartitionProgress, "take", _take_repeated)],
    "a watermark without the greatest Close": [(PartitionProgress, "watermark", _watermark_without_close)],
    "a watermark at the read end": [(PartitionProgress, "watermark", _watermark_as_read)],
    "later attempts are trained, too": [(Group, "settle", _settle_all)],
    "a fresh producer instead of cas": [(cas.CasLog, "_news", _no_news)],
    "a commit without its acknowledgements": [(MemoryTransaction, "stage", _stage_some)],
    "a span labelled when it is cut": [(spans.SpanBuffers, "_absorb", _absorb_whatever_version)],
    "recovery does not train again": [(recover, "train_again", _train_nothing_again)],
}

SCENARIO_OF: dict[str, str] = {
    "newest instead of greatest Claim": "late claim",
    "generate before the own Claim is read": "slow takeover",
    "spans of any epoch count": "late span",
    "a restart keeps its incarnation": "owners in turn",
    "any start is accepted": "sent again",
    "a writer resends nothing": "lost suffix",
    "a span after the end counts": "late span",
    "an idle Close ignores what followed": "late close",
    "an idle Close while a request runs": "late close",
    "nonces are not compared": "sent again",
    "a Position without its epoch": "owners in turn",
    "a Position with the epoch of now": "owners in turn",
    "a Position at the read end": "owners in turn",
    "Trajectories out of Close order": "assembler dies",
    "a Position passes an unacknowledged Trajectory": "assembler dies",
    "an offset passes what is not done": "work in hand",
    "repeated Trajectories are new": "trajectories again",
    "a watermark without the greatest Close": "trajectories again",
    "a watermark at the read end": "trainer dies",
    "later attempts are trained, too": "agents again",
    "a fresh producer instead of cas": "zombie writers",
    "a commit without its acknowledgements": "zombie writers",
    "a span labelled when it is cut": "late span",
    "recovery does not train again": "trainer dies",
}
"""By which faults each is hunted (`scenarios`)."""


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """The product with this defect; None: as it is."""
    with ExitStack() as stack:
        for target, attribute, value in PATCHES[name] if name else ():
            stack.enter_context(patch.object(target, attribute, value))
        yield
