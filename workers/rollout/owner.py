"""The owner: folds the partitions that are granted to it, runs their requests, and hands their spans to the writer.

One task calls `reconcile` and `take_in`, so that no record meets a fold that it was not read for. Another calls `absorb`.

Invariants:
- R1: the Claim is written first, and nothing runs before it was read back; a greater Claim ends the holding at once;
- R2: spans leave in the order in which their tokens were sampled, through a writer that resends the same records;
- a holding is given up only after its jobs were aborted and what they had sampled stands in the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import anyio
import structlog

from schemas.errors import TopicMismatch
from schemas.identity import Position
from schemas.record import Record
from schemas.session import Claim
from schemas.span import Span
from schemas.topics import GRANTS, SESSIONS
from streams.codec import Entry
from streams.failpoint import failpoint
from streams.log import Log, LogReader, RecordWriter
from workers.ledger import Change, Claimed, Extended, Requested, RequestEnded, RequestState, SessionEnded, SessionState
from workers.positions import Start, find_starts
from workers.rollout.admission import Admission, Candidate
from workers.rollout.engines.base import Emission, Engine, Job, JobId
from workers.rollout.holdings import Granted, Holding, granted_to, reconcile
from workers.rollout.spans import OwnedSpan, SpanBuffers
from workers.rollout.takeover import TakeoverClock
from workers.snapshot import snapshot_of
from workers.snapshot_store import SnapshotKeeper, SnapshotStore

logger = structlog.get_logger()


class Owner:
    """One incarnation of a node, between its log and its engine."""

    def __init__(
        self, log: Log, node: str, incarnation: str, engine: Engine, writer: RecordWriter, sessions: LogReader, buffers: SpanBuffers,
        snapshots: SnapshotStore | None = None,
    ) -> None:
        self._log, self._engine, self._writer, self._sessions, self._buffers = log, engine, writer, sessions, buffers
        self._snapshots = snapshots
        self.node, self.incarnation = node, incarnation
        self.takeover = TakeoverClock()
        self.holdings: dict[int, Holding] = {}
        self._admission = Admission()
        self._queue: deque[OwnedSpan] = deque()
        self._turn = anyio.Lock()

    async def reconcile(self, rows: Mapping[bytes, Entry[Record]]) -> bool:
        """Give up and take partitions as the newest Grants say; answers whether anything changed."""
        plan = reconcile(self.holdings, granted_to(rows, self.node, self.incarnation))
        if plan.release:
            await self.release(plan.release)
        if plan.take:
            await self._take(plan.take)
        return bool(plan.release or plan.take)

    async def release(self, partitions: Sequence[int]) -> None:
        """Abort, write what was sampled, wait until it stands in the log, and forget."""
        for partition in partitions:
            for job in self._admission.release(partition):
                await self._engine.abort(job)
            await self.write(self._buffers.release(partition))
            self._forget(partition)
        await self._writer.flush()
        logger.info("released", partitions=list(partitions))

    async def take_in(self, entries: Sequence[Entry[Record]]) -> None:
        """Fold records of `sessions`, and act on what they change."""
        if entries:
            failpoint("rollout.after_poll")
        for entry in entries:
            holding = self.holdings.get(entry.partition)
            if holding is None or entry.offset < holding.ledger.next:
                continue
            holding.backlog.saw(entry.offset, entry.record)
            change = holding.ledger.apply(entry.offset, entry.record)
            if change is not None:
                await self._act(holding, change)
        await self._submit()

    async def absorb(self, emissions: Sequence[Emission], now: float) -> None:
        """Take tokens of the engine, and write the spans that they complete."""
        spans = self._buffers.absorb(emissions, now)
        for emission in emissions:
            if emission.finish is not None:
                self._admission.end(emission.id)
            first_token_s = self.takeover.sampled(emission.id.partition, now) if emission.tokens else None
            if first_token_s is not None:
                logger.info("first token", partition=emission.id.partition, after_s=round(first_token_s, 3))
        await self.write(spans)

    async def write(self, spans: Sequence[OwnedSpan]) -> None:
        """Hand spans to the writer in the order in which they were cut, whichever tasks cut them.

        A span leaves the queue after it was handed over: a cancelled call leaves no gap, at worst a repetition, which R2 ignores.
        """
        self._queue.extend(spans)
        if not self._queue:
            return
        async with self._turn:
            while self._queue:
                await self._send(self._queue[0])
                self._queue.popleft()

    async def _send(self, owned: OwnedSpan) -> None:
        is_closing = owned.span.finish is not None
        if is_closing:
            failpoint("rollout.before_closing_span")
        await self._writer.send(SESSIONS, owned.partition, owned.span)
        failpoint("rollout.closing_span_sent" if is_closing else "rollout.mid_span")

    def positions(self) -> dict[int, Position]:
        """R5: where another owner may start, for the partitions that are live."""
        return {partition: holding.ledger.position() for partition, holding in self.holdings.items() if holding.is_live}

    def keep_snapshots(self, keeper: SnapshotKeeper, every_bytes: int) -> None:
        """Hand over the fold of a partition that a new owner would read for long; one at a time."""
        for partition, holding in self.holdings.items():
            if keeper.is_free and holding.is_live and holding.backlog.is_due(holding.ledger, every_bytes):
                keeper.take(snapshot_of(holding.ledger, self._log.name(SESSIONS), partition), holding.backlog)

    def waiting(self) -> int:
        """Requests that the folds show as running."""
        return sum(len(holding.ledger.unfinished()) for holding in self.holdings.values())

    async def _take(self, granted: Mapping[int, Granted]) -> None:
        self.takeover.taken(granted, anyio.current_time())
        epochs = {partition: grant.epoch for partition, grant in granted.items()}
        starts = await find_starts(self._log, granted, epochs, store=self._snapshots)
        for partition, grant in granted.items():
            await self._begin(partition, grant, starts[partition])
        by_snapshot = sorted(partition for partition, start in starts.items() if start.snapshot is not None)
        logger.info("taken", partitions=sorted(granted), by_snapshot=by_snapshot)

    async def _begin(self, partition: int, grant: Granted, start: Start) -> None:
        await self._require_granted(partition, start.position.epoch)
        self.holdings[partition] = Holding(partition, grant.epoch, start.ledger())
        self._sessions.add(partition, start.position.offset)
        if start.floor is not None:
            logger.error("retention passed every Position: earlier sessions of this partition are lost", partition=partition)
        claim = Claim(epoch=grant.epoch, node=self.node, incarnation=self.incarnation, cause=grant.cause, reset=start.floor is not None)
        await self._writer.send(SESSIONS, partition, claim)
        failpoint("rollout.before_own_claim")

    async def _act(self, holding: Holding, change: Change) -> None:
        match change:
            case Claimed(claim, ended):
                for session in ended:  # by a reset: they have no Close, and hold the Position no longer
                    await self._end_session(holding, session)
                await self._claimed(holding, claim)
            case Requested(session, request) if request.end is None and holding.is_live:
                self._offer(holding, session, request)
            case Extended(_, request) if request.end is not None:
                if holding.is_live:
                    failpoint("rollout.after_closing_span")
                self._admission.end(JobId(holding.partition, request.offset, holding.epoch))
            case RequestEnded(_, request):
                await self._stop(JobId(holding.partition, request.offset, holding.epoch))
            case SessionEnded(session):
                await self._end_session(holding, session)

    async def _end_session(self, holding: Holding, session: SessionState) -> None:
        for number in session.requests:
            await self._stop(JobId(holding.partition, number, holding.epoch))
        holding.ledger.forget(session)

    async def _claimed(self, holding: Holding, claim: Claim) -> None:
        if claim.epoch > holding.epoch:
            await self._lose(holding, claim)
        elif claim.epoch == holding.epoch:
            self._go_live(holding)

    def _go_live(self, holding: Holding) -> None:
        holding.is_live = True
        unfinished = holding.ledger.unfinished()
        for session, request in unfinished:
            self._offer(holding, session, request)
        own_s = self.takeover.owned(holding.partition, anyio.current_time(), len(unfinished))
        logger.info("owned", partition=holding.partition, epoch=holding.epoch, after_s=round(own_s, 3), unfinished=len(unfinished))

    async def _require_granted(self, partition: int, epoch: int) -> None:
        """Epochs are offsets of `grants`: one beyond its end means that the topic was made anew, and that no new epoch would ever count.

        :raises TopicMismatch: it was.
        """
        place = self._log.place(GRANTS, 0)
        end = (await self._log.broker.ends([place]))[place]
        if epoch >= end:
            raise TopicMismatch(
                f"sessions/{partition} was claimed under epoch {epoch}, and grants ends at {end}: grants was made anew under the topics "
                f"of namespace {self._log.namespace}; choose another namespace"
            )

    async def _lose(self, holding: Holding, claim: Claim) -> None:
        await self._require_granted(holding.partition, claim.epoch)
        logger.warning("lost a partition", partition=holding.partition, to=claim.node, epoch=claim.epoch)
        for job in self._admission.release(holding.partition):
            await self._engine.abort(job)
        self._buffers.release(holding.partition)  # spans of a fenced epoch would not count
        self._forget(holding.partition)

    def _forget(self, partition: int) -> None:
        self._sessions.remove(partition)
        self.takeover.gone(partition)
        del self.holdings[partition]

    def _offer(self, holding: Holding, session: SessionState, request: RequestState) -> None:
        self._admission.offer(Candidate(JobId(holding.partition, request.offset, holding.epoch), session, request))

    async def _submit(self) -> None:
        for candidate in self._admission.take():
            if candidate.is_poison:
                await self._refuse(candidate)
                continue
            request = candidate.request
            self._buffers.open(
                candidate.id, session=candidate.session.offset, start=request.accepted, stream=request.record.stream,
                now=anyio.current_time(),
            )  # fmt: skip
            prefix = request.prompt_ids() + request.token_ids()
            await self._engine.submit(Job(candidate.id, prefix, request.record.sampling, request.accepted))

    async def _refuse(self, candidate: Candidate) -> None:
        logger.error("a request killed its owners", request=candidate.id, deaths=candidate.request.deaths)
        self._admission.end(candidate.id)
        span = Span(
            session=candidate.session.offset, request=candidate.id.request, epoch=candidate.id.epoch, start=candidate.request.accepted,
            tokens=b"", logprobs=b"", version=max(0, self._engine.version), kv_version=0, finish="failed",
            detail=f"{candidate.request.deaths} owners died on this request without progress",
        )
        await self.write([OwnedSpan(candidate.id.partition, span)])

    async def _stop(self, job: JobId) -> None:
        self._admission.end(job)
        self._buffers.drop(job)
        await self._engine.abort(job)
