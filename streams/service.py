"""Runs one role in one process: signals, readiness, the watchdog and the exit code. Every role is one coroutine; this is its frame.

Invariants: a role that fails ends its process with the error's exit code and one line for the operator; SIGTERM and SIGINT end it cleanly
with 0; so does a role that says that it has finished, and one that only ends has failed; a role that makes no progress for its limit ends
with NoProgress and the cause it waited for (R10). A process that is to end, for any of these reasons, is gone after CLOSE_S: SIGALRM ends
one whose close hangs, or that left a thread behind.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import anyio
import anyio.lowlevel
import structlog
import uvloop
from anyio.abc import TaskStatus

from schemas.errors import EndedUnasked, NoProgress, SeamlessFlowError, Superseded
from streams.log import Log

LAG_PERIOD_S = 0.5
LAG_REPORT_S = 1.0
WATCH_PERIOD_S = 1.0
CLOSE_S = 20.0
"""How long a process may take to end before SIGALRM ends it all the same."""

GC_THRESHOLDS = (50_000, 20, 50)
"""A role holds many records and makes few cycles: at Python's defaults (700, 10, 10) the search for cycles is a sixth of its CPU time."""

logger = structlog.get_logger()

Finished = Literal["finished"]


class Role(Protocol):
    """What a service module gives: a coroutine that runs until it is cancelled. It calls `task_status.started()` when it can work.

    One whose work has an end answers `finished` there.
    """

    async def __call__(self, log: Log, watch: Watch, *, task_status: TaskStatus[None]) -> Finished | None:
        """Run the role."""
        ...


@dataclass
class Watch:
    """What a role waits for, and since when. A role without work is not without progress: `idle` waits have no limit."""

    limit_s: float = 60.0
    waits: dict[str, float] = field(default_factory=dict)
    late: str = ""
    """The wait that was longer than the limit, once there was one: the role is ended for it."""

    @contextmanager
    def waiting_for(self, cause: str) -> Iterator[None]:
        """A wait that must end within the limit: an answer of the engine, of the broker, of the file system."""
        self.waits[cause] = anyio.current_time()
        try:
            yield
        finally:
            self.waits.pop(cause, None)

    async def run(self) -> None:
        """Look at the waits once a second.

        :raises NoProgress: one of them is older than the limit.
        """
        while True:
            await anyio.sleep(WATCH_PERIOD_S)
            now = anyio.current_time()
            for cause, since in self.waits.items():
                if now - since > self.limit_s:
                    self.late = cause
                    raise NoProgress(f"waited {now - since:.0f} s for {cause}")


LogFactory = Callable[[str], AbstractAsyncContextManager[Log]]
"""Opens the log for a role, by its name: of a Kafka, or of a memory double."""


async def supervise(role: Role, log: Log, watch: Watch, ready_file: Path | None = None) -> None:
    """Run a role until it has finished, fails, or a signal asks it to stop.

    :raises EndedUnasked: it ended without any of these.
    """
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_on_signal, tasks.cancel_scope)
        tasks.start_soon(_end_without_progress, watch)
        tasks.start_soon(_measure_lag)
        await tasks.start(_run_to_end, tasks.cancel_scope, role, log, watch)
        _announce(log.role, ready_file)


async def _run_to_end(
    scope: anyio.CancelScope, role: Role, log: Log, watch: Watch, *, task_status: TaskStatus[None]
) -> None:
    """A role that ends by itself ends its process, too. Asked to stop, it may return as well as be cancelled."""
    said = await role(log, watch, task_status=task_status)
    if said is None and not scope.cancel_called:
        raise EndedUnasked(f"the role {log.role} ended, and nobody had asked it to")
    scope.cancel()


def run_process(main: Role, log_of: LogFactory, *, role: str, ready_file: Path | None = None, limit_s: float = 60.0) -> int:
    """The whole life of a role's process; answers its exit code."""
    configure_logging(role)
    gc.set_threshold(*GC_THRESHOLDS)
    watch = Watch(limit_s)

    async def body() -> None:
        async with log_of(role) as log:
            await supervise(main, log, watch, ready_file)

    failures: list[SeamlessFlowError] = []
    try:
        anyio.run(body, backend_options={"loop_factory": uvloop.new_event_loop})
    except* SeamlessFlowError as group:
        failures.append(first_error(group))
    if not failures:
        return 0
    _end_in_time()
    print(f"seamlessflow {role}: {failures[0]}", file=sys.stderr, flush=True)
    return failures[0].exit_code


def first_error(group: BaseExceptionGroup[SeamlessFlowError]) -> SeamlessFlowError:
    """The first of the errors of a task group: the others are its consequences."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SeamlessFlowError)
    return error


def came_from_outside(end: BaseException) -> bool:
    """Whether an end says nothing about the work that was done: a stop, another process that took over, or a broker, a store, a disk or a
    network that another try may find mended. Of a group's errors all must be of that kind.
    """
    if isinstance(end, BaseExceptionGroup):
        return all(map(came_from_outside, end.exceptions))
    if isinstance(end, SeamlessFlowError):
        return end.retriable or isinstance(end, Superseded)
    return isinstance(end, (anyio.get_cancelled_exc_class(), OSError))


def configure_logging(role: str) -> None:
    """Structured lines on standard error: JSON, or aligned text on a terminal. Names the role on every line."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(name)s %(levelname)s %(message)s")
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer() if sys.stderr.isatty() else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level,
                    structlog.processors.TimeStamper(fmt="iso"), renderer],
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    )
    structlog.contextvars.bind_contextvars(role=role, pid=os.getpid())


def _announce(role: str, ready_file: Path | None) -> None:
    logger.info("ready")
    if ready_file is not None:
        temporary = ready_file.with_suffix(".tmp")
        temporary.write_text(json.dumps({"role": role, "pid": os.getpid()}))
        temporary.rename(ready_file)


async def _stop_on_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            logger.info("stopping", signal=signal.Signals(number).name)
            _end_in_time()
            scope.cancel()
            return


async def _end_without_progress(watch: Watch) -> None:
    try:
        await watch.run()
    except NoProgress as error:
        logger.error(str(error))  # now: what is waited for may be a thread, and cancellation waits for it, too
        _end_in_time()
        raise


def _end_in_time() -> None:
    """No end waits for ever: the interpreter joins every thread before it exits, one that was abandoned in a hanging call, too."""
    signal.setitimer(signal.ITIMER_REAL, CLOSE_S)


async def _measure_lag() -> None:
    while True:
        before = anyio.current_time()
        await anyio.sleep(LAG_PERIOD_S)
        late = anyio.current_time() - before - LAG_PERIOD_S
        if late > LAG_REPORT_S:
            logger.warning("the event loop was blocked", late_s=round(late, 2))
