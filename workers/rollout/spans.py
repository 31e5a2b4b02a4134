"""Emissions become spans: which tokens go into one record, and when it is due. Pure: time comes from the caller.

A span ends at a version boundary, at the end of its request, after `stream_tokens` while someone streams, and when its first token is
`flush_s` old. Invariant: the spans of a job, in order, hold exactly its emitted tokens, each once; none mixes two versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from schemas.arrays import pack_f4, pack_i4
from schemas.span import Span
from workers.rollout.engines.base import Emission, JobId


@dataclass(slots=True)
class _Buffer:
    session: int
    start: int
    stream: bool
    opened_s: float
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: tuple[int, int] = (0, 0)
    since: float = 0.0


@dataclass(frozen=True, slots=True)
class OwnedSpan:
    """A span, and the partition that it belongs to."""

    partition: int
    span: Span


class SpanBuffers:
    """The jobs that an engine works on, and their tokens that are not written yet."""

    def __init__(self, stream_tokens: int, flush_s: float) -> None:
        self._stream_tokens = stream_tokens
        self._flush_s = flush_s
        self._buffers: dict[JobId, _Buffer] = {}

    def __len__(self) -> int:
        return len(self._buffers)

    def open(self, job: JobId, *, session: int, start: int, stream: bool, now: float) -> None:
        """Expect tokens of a job from index `start` of its request on; the engine gets it now."""
        self._buffers[job] = _Buffer(session, start, stream, now)

    def absorb(self, emissions: Iterable[Emission], now: float) -> list[OwnedSpan]:
        """Take tokens in; answers the spans that are complete. Tokens of a job that was dropped are dropped."""
        spans: list[OwnedSpan] = []
        for emission in emissions:
            buffer = self._buffers.get(emission.id)
            if buffer is not None:
                spans += self._absorb(emission, buffer, now)
        return spans

    def due(self, now: float) -> list[OwnedSpan]:
        """The spans whose first token has waited long enough."""
        return [
            _cut(job, buffer)
            for job, buffer in self._buffers.items()
            if buffer.tokens and buffer.since + self._flush_s <= now
        ]

    def until_due_s(self, now: float) -> float:
        """How long nothing can be due: tokens that come meanwhile are due later than what waits now, and not before `flush_s`."""
        since = min((buffer.since for buffer in self._buffers.values() if buffer.tokens), default=now)
        return max(0.0, since + self._flush_s - now)

    def flush(self) -> list[OwnedSpan]:
        """All tokens that are held: before a version boundary."""
        return [_cut(job, buffer) for job, buffer in self._buffers.items() if buffer.tokens]

    def release(self, partition: int) -> list[OwnedSpan]:
        """Forget a partition's jobs; answers what they had sampled."""
        jobs = self.jobs(partition)
        spans = [_cut(job, self._buffers[job]) for job in jobs if self._buffers[job].tokens]
        for job in jobs:
            del self._buffers[job]
        return spans

    def drop(self, job: JobId) -> None:
        """Forget a job and its tokens: its request has ended in the log."""
        self._buffers.pop(job, None)

    def jobs(self, partition: int) -> list[JobId]:
        """The jobs of a partition."""
        return [job for job in self._buffers if job.partition == partition]

    def _absorb(self, emission: Emission, buffer: _Buffer, now: float) -> list[OwnedSpan]:
        spans = []
        versions = (emission.version, emission.kv_version)
        if buffer.tokens and buffer.versions != versions:
            spans.append(_cut(emission.id, buffer))
        if not buffer.tokens:
            buffer.since, buffer.versions = now, versions
        buffer.tokens += emission.tokens
        buffer.logprobs += emission.logprobs
        if emission.finish is not None:
            del self._buffers[emission.id]
            spans.append(_cut(emission.id, buffer, emission, engine_ms=(now - buffer.opened_s) * 1e3))
        elif buffer.stream and len(buffer.tokens) >= self._stream_tokens:
            spans.append(_cut(emission.id, buffer))
        return spans


def _cut(job: JobId, buffer: _Buffer, ending: Emission | None = None, engine_ms: float = 0.0) -> OwnedSpan:
    span = Span(
        session=buffer.session, request=job.request, epoch=job.epoch, start=buffer.start,
        tokens=pack_i4(buffer.tokens), logprobs=pack_f4(buffer.logprobs),
        version=buffer.versions[0], kv_version=buffer.versions[1],
        finish=ending.finish if ending else None, detail=ending.detail if ending else "", engine_ms=engine_ms,
    )
    buffer.start += len(buffer.tokens)
    buffer.tokens, buffer.logprobs = [], []
    return OwnedSpan(job.partition, span)
