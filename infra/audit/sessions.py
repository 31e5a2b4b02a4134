"""R1-R4 over one partition of `sessions`: a naive fold written from the text of the design, and what a correct system never writes.

What counts:
- the epoch in force is the greatest Claim read so far; a span of another epoch does not count (R1);
- a span counts where its start equals the accepted length of its request; a lower start that repeats an accepted span is ignored; anything
  else ends the request as `failed` (R2);
- a request ends by its closing span, by Cancel, or by Close of its session, whichever is first; later records of it do not count (R3);
- a gateway's record whose nonce its session has seen does not count; an idle Close does not count if a counted record followed `seen`.

Not a violation, because zombies, races and resends write it: a span of an older epoch that was claimed; a Claim at or below the epoch in
force by its own incarnation; a repeated span; records of an ended session or request; a nonce seen before; an idle Close that came too
late; an Open without records. These are counted as `ignored`.

A violation, because no correct process can write it, whatever dies or wakes:
- R1: a Claim that no Grant covers; one epoch claimed by two incarnations; a span whose epoch nobody claimed before it in this partition;
- R2: a start beyond the accepted tokens, or other tokens at or below them, by the epoch in force; a repeat that differs in logprobs,
  version or end; more tokens than the request allows; a base that the session does not hold, or longer than what was accepted of it;
- R3: a record of a session or request that is not in the log; an idle Close that ends a session with a running request; a span of the epoch
  that closed the request itself which repeats nothing;
- R4: bytes that are no record; an unknown type or major, or a blob that is gone, where the reading of that partition ends as every
  reader's does;
- R8: a version that goes back within one request and one epoch (a new owner may lag behind the old one).

Held in memory: every session of the log with its accepted tokens, logprobs and span places; about 40 bytes a token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from infra.audit.entry import Entry
from infra.audit.findings import Findings, Place
from infra.audit.grants import Grants

TOKEN_BYTES = 4


class SpanRead(NamedTuple):
    """A span that counted. `first_token` and `length` are in tokens; `offset` and `timestamp_ms` are its record's."""

    first_token: int
    length: int
    epoch: int
    version: int
    finish: str | None
    offset: int
    timestamp_ms: int


@dataclass(slots=True)
class RequestRead:
    """One request as the log has it: `tokens` int32 and `logprobs` float32 are the accepted ones, in the log's own bytes."""

    entry: Entry
    prefix_length: int
    tokens: bytearray = field(default_factory=bytearray)
    logprobs: bytearray = field(default_factory=bytearray)
    spans: list[SpanRead] = field(default_factory=list)
    end: str | None = None
    end_epoch: int | None = None
    is_rooted: bool = True
    """Its prompt is known: its base holds what it builds upon, and is rooted itself."""
    sent: dict[int, int] = field(default_factory=dict)
    """By epoch: the start of the first span that was written under it, counted or not."""

    @property
    def offset(self) -> int:
        """Its id."""
        return self.entry.offset

    @property
    def accepted(self) -> int:
        """How many sampled tokens count."""
        return len(self.tokens) // TOKEN_BYTES

    @property
    def whole_length(self) -> int:
        """Prefix, own prompt and accepted tokens: what a later request may take as its base."""
        return self.prefix_length + len(self.entry["tokens"]) // TOKEN_BYTES + self.accepted


@dataclass(slots=True)
class SessionRead:
    """One session as the log has it. `last` is its last counted record; `closed` the record that ended it."""

    entry: Entry
    last: int
    requests: dict[int, RequestRead] = field(default_factory=dict)
    nonces: set[bytes] = field(default_factory=set)
    closed: Entry | None = None

    @property
    def ended_by_reset(self) -> bool:
        """True where a Claim with `reset` ended it: no Trajectory follows."""
        return self.closed is not None and self.closed.type == "Claim"

    @property
    def running(self) -> list[RequestRead]:
        """Its requests without an end."""
        return [request for request in self.requests.values() if request.end is None]


class ClaimRead(NamedTuple):
    """A Claim that raised the epoch. `unfinished` maps each running request to its accepted tokens at that moment."""

    entry: Entry
    former_epoch: int
    unfinished: dict[int, int]


@dataclass(slots=True)
class PartitionRead:
    """One partition of `sessions`, folded record by record with `apply`.

    `begin` and `epoch` are where the reading starts and the epoch in force there (0 and −1 unless retention took the beginning). `waiting`:
    the beginning is gone and no Position covers it, so that nothing counts before a Claim with `reset` (R5).
    """

    partition: int
    grants: Grants
    findings: Findings
    begin: int = 0
    epoch: int = -1
    waiting: bool = False
    sessions: dict[int, SessionRead] = field(default_factory=dict)
    requests: dict[int, RequestRead] = field(default_factory=dict)
    claims: list[ClaimRead] = field(default_factory=list)
    claimants: dict[int, tuple[str, str]] = field(default_factory=dict)
    ignored: Counter[str] = field(default_factory=Counter)
    ignored_tokens: Counter[str] = field(default_factory=Counter)
    """Tokens of spans that did not count and repeat nothing: sampled in vain."""
    stopped_at: int | None = None
    initial_epoch: int = field(init=False)

    def __post_init__(self) -> None:
        self.initial_epoch = self.epoch

    def unreadable(self, place: Place, reason: str, *, stops: bool) -> None:
        """Bytes that are no record: passed over, or the end of the reading where every reader stops."""
        if self.stopped_at is None:
            self.findings.need(False, "R4", place, "%s%s", reason, ": every reader stops here" if stops else "")
            self.stopped_at = place.offset if stops else None

    def apply(self, entry: Entry) -> None:
        """Fold the next record."""
        if self.stopped_at is not None or entry.offset < self.begin:
            return
        self.findings.checked["R4"] += 1
        if entry.type == "Claim":
            self._claim(entry)
        elif self.waiting:
            self.ignored["before a reset"] += 1
        elif entry.type == "Open":
            self.sessions[entry.offset] = SessionRead(entry, last=entry.offset)
        else:
            self._of_session(entry)

    def holds(self, session: int) -> bool:
        """The records of this session were read: it began where reading did, or later."""
        return not self.waiting and session >= self.begin

    def epoch_at(self, offset: int) -> int:
        """The epoch in force before the record at `offset` is read."""
        return max((claim.entry["epoch"] for claim in self.claims if claim.entry.offset < offset), default=self.initial_epoch)

    def _claim(self, entry: Entry) -> None:
        epoch, claimant = entry["epoch"], (entry["node"], entry["incarnation"])
        objection = self.grants.objection(entry)
        self.findings.need(objection is None, "R1", entry, "%s", objection)
        before = self.claimants.setdefault(epoch, claimant)
        self.findings.need(before == claimant, "R1", entry, "epoch %d was claimed by %s before, now by %s", epoch, before, claimant)
        if epoch <= self.epoch:
            self.ignored["claim not above the epoch in force"] += 1
            return
        unfinished = {request.offset: request.accepted for session in self._open_sessions() for request in session.running}
        self.claims.append(ClaimRead(entry, self.epoch, unfinished))
        self.epoch = epoch
        if entry["reset"]:
            self._reset(entry)

    def _reset(self, entry: Entry) -> None:
        if self.waiting:
            self.begin, self.waiting = entry.offset, False
        for session in self._open_sessions():
            self._end_session(session, entry)

    def _open_sessions(self) -> list[SessionRead]:
        return [session for session in self.sessions.values() if session.closed is None]

    def _of_session(self, entry: Entry) -> None:
        session = self.sessions.get(entry["session"])
        if session is None:
            outside = not self.holds(entry["session"])
            self.findings.need(outside, "R3", entry, "%s of session %d, which is no Open here", entry.type, entry["session"])
            self.ignored["unknown session"] += 1
            return
        if entry.type == "Span":
            self._require_claimed(entry)
        if session.closed is not None:
            self._ignore("session had ended", entry)
            return
        steps: dict[str, Callable[[SessionRead, Entry], None]] = {
            "Request": self._request, "Cancel": self._cancel, "Close": self._close, "Span": self._span,
        }
        steps[entry.type](session, entry)

    def _seen(self, session: SessionRead, entry: Entry) -> bool:
        nonce = entry["nonce"]
        if nonce and nonce in session.nonces:
            self.ignored["nonce seen"] += 1
            return True
        session.nonces.add(nonce)
        return False

    def _request(self, session: SessionRead, entry: Entry) -> None:
        if self._seen(session, entry):
            return
        base = session.requests.get(entry["base"]) if entry["base"] is not None else None
        base = base if base is None or base.is_rooted else None
        known = base is not None or entry["base"] is None
        self.findings.need(known, "R2", entry, "base %s is no request of session %d", entry["base"], session.entry.offset)
        fits = base is None or entry["base_length"] <= base.whole_length
        self.findings.need(
            fits, "R2", entry, "base_length %d of request %s, which has %d tokens", entry["base_length"], entry["base"],
            base.whole_length if base else 0,
        )
        is_rooted = known and fits
        request = RequestRead(entry, entry["base_length"], end=None if is_rooted else "failed", is_rooted=is_rooted)
        session.requests[entry.offset] = self.requests[entry.offset] = request
        session.last = entry.offset

    def _cancel(self, session: SessionRead, entry: Entry) -> None:
        request = session.requests.get(entry["request"])
        if request is None or request.end is not None:
            self.ignored["cancel of an ended or unknown request"] += 1
            return
        request.end = "cancelled"
        session.last = entry.offset

    def _close(self, session: SessionRead, entry: Entry) -> None:
        if self._seen(session, entry):
            return
        if entry["idle"] and session.last > entry["seen"]:
            self.ignored["idle close after activity"] += 1
            return
        if entry["idle"]:
            running = [request.offset for request in session.running]
            self.findings.need(not running, "R3", entry, "idle Close of session %d while %s run", session.entry.offset, running)
        session.last = entry.offset
        self._end_session(session, entry)

    def _end_session(self, session: SessionRead, entry: Entry) -> None:
        session.closed = entry
        for request in session.running:
            request.end = "closed"

    def _span(self, session: SessionRead, entry: Entry) -> None:
        request = session.requests.get(entry["request"])
        known = request is not None
        if not self.findings.need(known, "R3", entry, "span of %d, no request of session %d", entry["request"], session.entry.offset):
            return
        assert request is not None
        request.sent.setdefault(entry["epoch"], entry["start"])
        if entry["epoch"] != self.epoch:
            self._ignore("span of another epoch", entry)
        elif request.end is not None:
            self._after_end(request, entry)
        elif entry["start"] == request.accepted:
            self._count(session, request, entry)
        else:
            self._lower_or_beyond(session, request, entry)

    def _ignore(self, why: str, entry: Entry, *, repeats: bool = False) -> None:
        self.ignored[why] += 1
        if entry.type == "Span" and not repeats:
            self.ignored_tokens[why] += len(entry["tokens"]) // TOKEN_BYTES

    def _require_claimed(self, entry: Entry) -> None:
        claimed = entry["epoch"] in self.claimants or entry["epoch"] <= self.initial_epoch
        self.findings.need(claimed, "R1", entry, "span of epoch %d before any Claim of it; %d is in force", entry["epoch"], self.epoch)

    def _count(self, session: SessionRead, request: RequestRead, entry: Entry) -> None:
        count = len(entry["tokens"]) // TOKEN_BYTES
        self._require_forward(request, entry)
        request.spans.append(SpanRead(
            request.accepted, count, entry["epoch"], entry["version"], entry["finish"], entry.offset, entry.timestamp_ms,
        ))
        request.tokens += entry["tokens"]
        request.logprobs += entry["logprobs"]
        budget = request.entry["sampling"]["max_tokens"]
        self.findings.need(request.accepted <= budget, "R2", entry, "%d tokens where max_tokens is %d", request.accepted, budget)
        if entry["finish"] is not None:
            request.end, request.end_epoch = entry["finish"], entry["epoch"]
        session.last = entry.offset

    def _require_forward(self, request: RequestRead, entry: Entry) -> None:
        before = request.spans[-1] if request.spans else None
        if before is not None and before.epoch == entry["epoch"]:
            forward = entry["version"] >= before.version
            self.findings.need(forward, "R8", entry, "version %d after %d under one epoch", entry["version"], before.version)

    def _lower_or_beyond(self, session: SessionRead, request: RequestRead, entry: Entry) -> None:
        start, accepted = entry["start"], request.accepted
        if _repeated(request, entry) is not None:
            self._repeat(request, entry)
            return
        how = "beyond the" if start > accepted else "other than the"
        self.findings.need(False, "R2", entry, "span of request %d starts at %d, %s %d accepted", request.offset, start, how, accepted)
        request.end = "failed"
        session.last = entry.offset

    def _repeat(self, request: RequestRead, entry: Entry) -> None:
        again = _repeated(request, entry)
        same = again is not None and _same_record(request, again, entry)
        self.findings.need(same, "R2", entry, "repeats tokens %d of request %d with other figures", entry["start"], request.offset)
        self.ignored["span repeated"] += 1

    def _after_end(self, request: RequestRead, entry: Entry) -> None:
        again = _repeated(request, entry) is not None
        self._ignore("request had ended", entry, repeats=again)
        if request.end_epoch == entry["epoch"]:
            self.findings.need(again, "R3", entry, "span of request %d after its owner had closed it", request.offset)


def _repeated(request: RequestRead, entry: Entry) -> SpanRead | None:
    """The counted span that this one repeats: same boundaries, same tokens."""
    for span in request.spans:
        if span.first_token == entry["start"] and span.length * TOKEN_BYTES == len(entry["tokens"]):
            return span if _cut(request.tokens, span) == entry["tokens"] else None
    return None


def _same_record(request: RequestRead, span: SpanRead, entry: Entry) -> bool:
    figures = (_cut(request.logprobs, span), span.version, span.finish)
    return figures == (entry["logprobs"], entry["version"], entry["finish"])


def _cut(array: bytearray, span: SpanRead) -> bytes:
    return bytes(array[span.first_token * TOKEN_BYTES:(span.first_token + span.length) * TOKEN_BYTES])
