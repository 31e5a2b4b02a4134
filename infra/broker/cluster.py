"""The life of a local Kafka in a run folder: start, stop, and the faults that tests need.

`RUN/kafka` holds `state.json` (see `infra.broker.state`) and for each node its settings, log and data (see `infra.broker.node`).
Invariants: `start` on a running cluster changes nothing; after the death of any node it brings that node back on the same data and
ports; `stop` and a failed `start` leave no process; calls on one folder from several processes wait for each other.
"""

from __future__ import annotations

import base64
import fcntl
import signal
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.to_thread

from infra.broker.archive import with_archive
from infra.broker.jars import KAFKA_VERSION, kafka_jars
from infra.broker.java import find_java
from infra.broker.jvm import QUICK_START, Installation
from infra.broker.node import diagnose, format_nodes, launch, lay_out, log_file
from infra.broker.ports import answers, choose_ports, require_free
from infra.broker.process import Process, await_death, end_all
from infra.broker.ready import is_ready
from infra.broker.state import ClusterState, NodeState, bootstrap_of, read_state, write_state
from schemas.errors import SetupError, UsageError

READY_DEADLINE_S = 90.0
STOP_GRACE_S = 8.0


def install(*, lasting: bool = False) -> Installation:
    """Find or fetch all that runs a node: Java, jars, class archive. Cached: the second call takes a moment. `lasting`: see `LocalKafka`.

    :raises SetupError: there is no Java, or the jars are not to be had.
    """
    found = with_archive(find_java(), kafka_jars())
    return found if lasting else replace(found, options=(*found.options, QUICK_START))


@asynccontextmanager
async def local_kafka(folder: Path, nodes: int = 1) -> AsyncIterator[LocalKafka]:
    """A ready cluster in `folder` for as long as the context lasts.

    :raises SetupError: see `LocalKafka.start`.
    """
    kafka = LocalKafka(folder)
    try:
        await anyio.to_thread.run_sync(kafka.start, nodes)
        yield kafka
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(kafka.stop)


class LocalKafka:
    """The cluster of a run folder. Nodes are counted from 1. Methods block: async callers use a worker thread.

    `lasting`: nodes started here are to run for more than a minute or two. They start more slowly, and then take a third less CPU.
    """

    def __init__(self, folder: Path, *, lasting: bool = False) -> None:
        self._lasting = lasting
        self._folder = folder.absolute() / "kafka"
        self._file = self._folder / "state.json"

    @property
    def state(self) -> ClusterState | None:
        """What is written down; None where no cluster was started here yet."""
        return read_state(self._file)

    @property
    def bootstrap(self) -> str:
        """The address for clients.

        :raises UsageError: no cluster was started here yet.
        """
        return self._known().bootstrap

    def log(self, node: int) -> Path:
        """The file with a node's warnings and output."""
        return log_file(self._folder, node)

    def running(self) -> list[int]:
        """The numbers of the nodes that run now."""
        state = self.state
        return [] if state is None else [number for number, node in enumerate(state.nodes, 1) if node.is_running]

    def start(
        self, nodes: int = 1, port: int | None = None, deadline_s: float = READY_DEADLINE_S, *, proxied: bool = False
    ) -> None:
        """Start every node that does not run, and wait until the cluster is ready. `port` is node 1's for clients (default: a free one).

        `proxied`: a new cluster sends its clients to other ports than it listens on (see `NodePorts.advertised`).

        :raises SetupError: Java, jars, a port or disk is missing, or the cluster is not ready within `deadline_s`.
        :raises UsageError: the folder holds a cluster of another size, port or Kafka version.
        """
        with self._locked():
            state = self.state or self._plan(nodes, port, proxied)
            self._require_same(state, nodes, port)
            idle = [number for number, node in enumerate(state.nodes, 1) if not node.is_running]
            self._launch(state, idle, deadline_s)

    def stop(self) -> None:
        """End every node: all at once, by force after STOP_GRACE_S seconds. Data and ports stay for the next start."""
        state = self.state
        if state is None:
            return
        with self._locked():
            end_all(state.running(), grace_s=STOP_GRACE_S)

    def kill(self, node: int = 1) -> None:
        """SIGKILL one node, and wait until it is gone."""
        process = self._process(node)
        process.signal(signal.SIGKILL)
        await_death([process], deadline_s=STOP_GRACE_S)

    def restart(self, node: int = 1, deadline_s: float = READY_DEADLINE_S) -> None:
        """Start one node again (SIGKILL first, if it runs), and wait until it and the others that run are ready.

        :raises SetupError: as `start`.
        """
        if node in self.running():
            self.kill(node)
        with self._locked():
            self._launch(self._known(), [node], deadline_s)

    def freeze(self, node: int = 1) -> None:
        """SIGSTOP one node: it answers nothing, while its connections stay open."""
        self._process(node).signal(signal.SIGSTOP)

    def thaw(self, node: int = 1) -> None:
        """SIGCONT one node."""
        self._process(node).signal(signal.SIGCONT)

    def _plan(self, nodes: int, port: int | None, proxied: bool) -> ClusterState:
        if nodes not in (1, 3):
            raise UsageError(f"a local cluster has 1 or 3 nodes, not {nodes}")
        ports = choose_ports(nodes, port, proxied=proxied)
        planned = tuple(NodeState(ports=each) for each in ports)
        return ClusterState(bootstrap=bootstrap_of(ports), cluster_id=_new_id(), kafka_version=KAFKA_VERSION, nodes=planned)

    def _require_same(self, state: ClusterState, nodes: int, port: int | None) -> None:
        differences = {
            f"{len(state.nodes)} nodes": len(state.nodes) != nodes,
            f"port {state.nodes[0].ports.client}": port not in (None, state.nodes[0].ports.client),
            f"Kafka {state.kafka_version}": state.kafka_version != KAFKA_VERSION,
        }
        found = [what for what, differs in differences.items() if differs]
        if found:
            raise UsageError(f"{self._folder} holds a cluster with {' and '.join(found)}: ask for that, or name another run folder")

    def _launch(self, state: ClusterState, idle: list[int], deadline_s: float) -> None:
        launched: list[Process] = []
        try:
            own = list(idle)
            state = self._launch_all(state, idle, launched)
            while ended := self._await_ready(state, own, deadline_s):
                state = self._launch_all(state, ended, launched)
                own += ended
        except OSError as failure:
            end_all(launched, grace_s=STOP_GRACE_S)
            raise SetupError(f"{self._folder} cannot be written: {failure.strerror}; free disk or name another run folder") from failure
        except BaseException:  # Ctrl-C, too: a start that did not succeed leaves nothing behind
            end_all(launched, grace_s=STOP_GRACE_S)
            raise

    def _launch_all(self, state: ClusterState, idle: list[int], launched: list[Process]) -> ClusterState:
        if not idle:
            return state
        installation = install(lasting=self._lasting)
        require_free([port for node in idle for port in state.nodes[node - 1].ports.all()])
        lay_out(self._folder, [node.ports for node in state.nodes])
        write_state(self._file, state)
        format_nodes(installation, self._folder, idle, state.cluster_id)
        for node in idle:
            process = launch(installation, self._folder, node)
            launched.append(process)
            state = state.with_process(node, process)
            write_state(self._file, state)
        return state

    def _await_ready(self, state: ClusterState, own: Sequence[int], deadline_s: float) -> list[int]:
        """Nothing once all answer; else the nodes that ran before this start and ended since: SIGKILL takes its time."""
        until = time.monotonic() + deadline_s
        expected = [number for number, node in enumerate(state.nodes, 1) if node.is_running]
        while time.monotonic() < until:
            ended = [node for node in expected if not state.nodes[node - 1].is_running]
            for node in ended:
                if node in own:
                    raise SetupError(f"node {node} of the local Kafka ended: {diagnose(log_file(self._folder, node))}")
            if ended:
                return ended
            if all(answers(state.nodes[node - 1].ports.client) for node in expected) and is_ready(state.direct, len(expected)):
                return []
            time.sleep(0.05)
        raise SetupError(f"the local Kafka was not ready within {deadline_s:.0f} s: {diagnose(log_file(self._folder, expected[0]))}")

    def _process(self, node: int) -> Process:
        process = self._known().nodes[node - 1].process
        if process is None:
            raise UsageError(f"node {node} in {self._folder} was never started")
        return process

    def _known(self) -> ClusterState:
        state = self.state
        if state is None:
            raise UsageError(f"no local Kafka was started in {self._folder}: run `seamlessflow up --only kafka`")
        return state

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            handle = (self._folder / ".lock").open("w")
        except OSError as failure:
            raise SetupError(f"{self._folder} cannot be written: {failure.strerror}; name another run folder") from failure
        with handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def _new_id() -> str:
    """A cluster id as Kafka wants it: a UUID in URL-safe base64, not beginning like an option."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
