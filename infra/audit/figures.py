"""Figures for a report, from raw records: what was resumed and how fast, what was lost, how much was sampled.

Words:
- a *takeover* is a Claim that raises the epoch while requests of its partition run;
- a request is *resumed* where the new epoch's first span of it counted; *in mid-generation* where it had accepted tokens at the Claim;
- a request is *resumed at its accepted length* where the first span that was written under the new epoch, whether it counted or not,
  starts where the accepted tokens ended at the Claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from infra.audit.sessions import ClaimRead, PartitionRead, RequestRead, SpanRead


@dataclass(frozen=True, slots=True)
class Takeover:
    """One takeover. `seconds` runs from the kill (or the old owner's last counted span) to the first counted span of a resumed request;
    None where nothing was resumed, or nothing says when the old owner stopped. `own_s` and `first_token_s` are its halves: up to the Claim,
    and from there."""

    partition: int
    offset: int
    epoch: int
    cause: str
    unfinished: int
    resumed: int
    resumed_in_mid_generation: int
    at_accepted_length: bool
    seconds: float | None
    own_s: float | None
    first_token_s: float | None


@dataclass(frozen=True, slots=True)
class SessionFigures:
    """Sums over all partitions of `sessions`. `resumed_at_accepted_length` is None without a resumed request."""

    sessions: int
    ended: int
    requests: int
    lost_requests: int
    tokens: int
    resumed_requests: int
    resumed_in_mid_generation: int
    resumed_at_accepted_length: bool | None
    ignored: dict[str, int]
    takeovers: list[Takeover]


def session_figures(partitions: Mapping[int, PartitionRead], kills_ms: Iterable[int] = ()) -> SessionFigures:
    """Sum up. `kills_ms`: when owners were killed, milliseconds since 1970; a takeover counts from the last kill before its Claim."""
    reads = list(partitions.values())
    kills = sorted(kills_ms)
    takeovers = [takeover for read in reads for takeover in _takeovers(read, kills)]
    requests = [request for read in reads for request in read.requests.values()]
    sessions = [session for read in reads for session in read.sessions.values()]
    resumed = [takeover for takeover in takeovers if takeover.resumed]
    return SessionFigures(
        sessions=len(sessions),
        ended=sum(session.closed is not None for session in sessions),
        requests=len(requests),
        lost_requests=sum(request.end is None for request in requests),
        tokens=sum(request.accepted for request in requests),
        resumed_requests=sum(takeover.resumed for takeover in takeovers),
        resumed_in_mid_generation=sum(takeover.resumed_in_mid_generation for takeover in takeovers),
        resumed_at_accepted_length=all(takeover.at_accepted_length for takeover in resumed) if resumed else None,
        ignored=_summed(reads),
        takeovers=takeovers,
    )


def _summed(reads: list[PartitionRead]) -> dict[str, int]:
    reasons = sorted({reason for read in reads for reason in read.ignored})
    return {reason: sum(read.ignored[reason] for read in reads) for reason in reasons}


def _takeovers(read: PartitionRead, kills: list[int]) -> Iterator[Takeover]:
    for claim in read.claims:
        if claim.unfinished and not claim.entry["reset"]:
            yield _takeover(read, claim, kills)


def _takeover(read: PartitionRead, claim: ClaimRead, kills: list[int]) -> Takeover:
    epoch = claim.entry["epoch"]
    firsts = {offset: span for offset in claim.unfinished if (span := _first_span(read.requests[offset], epoch)) is not None}
    sent = {offset: read.requests[offset].sent[epoch] for offset in claim.unfinished if epoch in read.requests[offset].sent}
    began, resumed_at = _stopped_ms(read, claim, kills), min((span.timestamp_ms for span in firsts.values()), default=None)
    claimed_at = claim.entry.timestamp_ms
    return Takeover(
        partition=read.partition, offset=claim.entry.offset, epoch=epoch, cause=claim.entry["cause"],
        unfinished=len(claim.unfinished), resumed=len(firsts),
        resumed_in_mid_generation=sum(claim.unfinished[offset] > 0 for offset in firsts),
        at_accepted_length=all(start == claim.unfinished[offset] for offset, start in sent.items()),
        seconds=_seconds(began, resumed_at), own_s=_seconds(began, claimed_at), first_token_s=_seconds(claimed_at, resumed_at),
    )


def _seconds(begin_ms: int | None, end_ms: int | None) -> float | None:
    return None if begin_ms is None or end_ms is None else (end_ms - begin_ms) / 1000


def _first_span(request: RequestRead, epoch: int) -> SpanRead | None:
    return next((span for span in request.spans if span.epoch == epoch), None)


def _stopped_ms(read: PartitionRead, claim: ClaimRead, kills: list[int]) -> int | None:
    """When the old owner stopped: the last kill before the Claim, where it died; else its last counted span in this partition."""
    before = [kill for kill in kills if kill <= claim.entry.timestamp_ms]
    if claim.entry["cause"] == "dead" and before:
        return before[-1]
    spans = (span for request in read.requests.values() for span in request.spans if span.epoch == claim.former_epoch)
    return max((span.timestamp_ms for span in spans if span.offset < claim.entry.offset), default=None)
