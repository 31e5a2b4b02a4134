"""A pipeline of real processes around the paced engine, on real Kafka: started once per module, broken and mended by its tests."""

from __future__ import annotations

import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from infra.audit.log import KafkaLog
from infra.audit.verify import Audit, AuditOptions, Verdict
from infra.broker.ports import choose_ports
from infra.crew.crew import Crew, Event, open_crew
from infra.crew.member import Member, Spec
from models.chat import NumberChat
from schemas.record import Record
from schemas.settings import Connection
from schemas.topics import TRAINING
from schemas.training import Consumed, Plan, Run, Step, WeightFile, WeightVersion
from streams.blobs import Blobs
from streams.cas import open_cas
from streams.failpoint import VARIABLE
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics
from tests.flow.agents import Work, require_answers
from tests.flow.paper_trainer import GROUPS_PER_STEP, STEPS
from tests.flow.seen import DEADLINE_S, Key, Seen, require_self_describing

PARTITIONS = 4
WORKERS = ("rollout-0", "rollout-1")
TOKENS_PER_S = 50
POLL_S = 0.02
MEMBERS = 2
SOURCE: dict[str, object] = {
    "tasks": "tests.flow.plugins:tasks", "members": MEMBERS, "groups_per_step": GROUPS_PER_STEP, "steps": STEPS, "evaluate_every": 0
}
AGENTS: dict[str, object] = {"agent": "tests.flow.plugins:agent", "concurrency": 32, "commit_s": 0.3}


class PaperTrainer(Member):
    """The trainer without torch, in a process of its own (`tests.flow.paper_trainer`)."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", "tests.flow.paper_trainer", *self._flags, str(self.ready_file)]


@dataclass
class Pipeline:
    """A crew and its log. `specs` by name: what may be started. `at_home`: who works before and after each test. `url`: the gateway's."""

    connection: Connection
    crew: Crew
    specs: dict[str, Spec]
    url: str
    at_home: list[str] = field(default_factory=list)

    def log(self) -> Log:
        """The log, as a test reads and writes it: as patient as the test is."""
        broker = KafkaBroker(self.connection.address(), client_id="flow-test", deadline_s=DEADLINE_S)
        return Log(broker, self.connection.namespace, "test", Blobs(self.connection.blob_root()))

    async def start(self, *names: str) -> None:
        """Start members and wait until they can work."""
        self.crew.start([self.specs[name] for name in names])
        await self.ready(*names)

    def start_trainer(self, name: str, step_s: float = 0.0, hosts: Sequence[str] = ()) -> None:
        """Start a trainer without torch, each of whose steps takes so long, on `hosts` where given."""
        flags = [self.connection.address(), self.connection.namespace, str(step_s), ",".join(hosts)]
        self.crew.members[name] = PaperTrainer(Spec(name, "trainer"), flags, self.connection.run_dir)
        self.crew.members[name].start()

    async def ready(self, *names: str) -> None:
        """Wait until these can work."""
        await anyio.to_thread.run_sync(self.crew.await_ready, list(names), DEADLINE_S)

    async def restart(self, name: str, failpoint: str = "") -> None:
        """Start a member again; with a failpoint, to die there."""
        os.environ[VARIABLE] = failpoint
        try:
            self.crew.restart(name)
        finally:
            del os.environ[VARIABLE]
        if not failpoint:
            await self.ready(name)

    async def exit_code(self, name: str) -> int:
        """Wait for a member to end; how it did."""
        process = self.crew.members[name].process
        assert process is not None
        with anyio.fail_after(DEADLINE_S):
            while (code := process.exit_code()) is None:
                await anyio.sleep(POLL_S)
        return code

    async def dies(self, name: str) -> None:
        """Wait until a member's failpoint has killed it."""
        assert await self.exit_code(name) == -signal.SIGKILL, self.crew.members[name].last_words()

    def said(self, name: str) -> str:
        """All that a member's processes wrote."""
        return self.crew.members[name].log.read_text(encoding="utf-8", errors="replace")

    async def come_home(self, without: str = "") -> None:
        """Every member runs and works, but for one that may be named: what an earlier test left behind is mended."""
        self.crew.end([name for name in self.crew.members if name not in self.at_home])
        wanted = [name for name in self.at_home if name != without]
        for name in wanted:
            if self.crew.members[name].is_alive:
                self.crew.thaw(name)
            else:
                self.crew.restart(name)
        await self.ready(*wanted)

    async def audit(self, **options: Any) -> Verdict:
        """The verdict on the log as it stands now. Paced weights have no files."""
        return await anyio.to_thread.run_sync(self._audit, AuditOptions(weights=False, **options))

    def _audit(self, options: AuditOptions) -> Verdict:
        with KafkaLog(self.connection.address(), self.connection.namespace) as log:
            return Audit(log, options).run()


def light_specs(run_dir: Path, port: int, **changes: dict[str, object]) -> list[Spec]:
    """Gateway, scheduler, assembler, reward, two rollout workers. `changes` of settings by role."""
    model = {"model_dir": run_dir / "model"}
    paced = {"engine": "paced", "paced_tokens_per_s": TOKENS_PER_S, "flush_s": 0.2, "report_s": 0.5, "commit_s": 0.5}
    roles: list[tuple[str, str, dict[str, object]]] = [
        ("gateway", "gateway", {**model, "port": port}),
        ("scheduler", "scheduler", {"tick_s": 0.5}),
        ("assembler", "assembler", {"idle_s": 60, "commit_s": 0.5}),
        ("reward", "reward", {**model, "rule": "tests.flow.plugins:CountRule", "commit_s": 0.5}),
        *((name, "rollout", {**model, **paced, "node": name}) for name in WORKERS),
    ]
    return [Spec(name, role, {**settings, **changes.get(role, {})}) for name, role, settings in roles]


Tell = Callable[[Event], None]


@contextmanager
def open_pipeline(bootstrap: str, run_dir: Path, tell: Tell = print, **changes: dict[str, object]) -> Iterator[Pipeline]:
    """A pipeline with nothing started yet, its topics and version 0 made. Leaving ends all its processes."""
    namespace = f"test-{secrets.token_hex(4)}."
    connection = Connection.model_validate({"bootstrap": bootstrap, "namespace": namespace, "run_dir": run_dir})
    (run_dir / "model").mkdir(parents=True)
    NumberChat().save(run_dir / "model")
    (ports,) = choose_ports(1)
    specs = {spec.name: spec for spec in light_specs(run_dir, ports.client, **changes)}
    with open_crew(connection, tell) as crew:
        pipeline = Pipeline(connection, crew, specs, f"http://127.0.0.1:{ports.client}")
        anyio.run(ensure_topics, pipeline.log().broker, namespace, PARTITIONS)
        yield pipeline


@contextmanager
def standing_pipeline(bootstrap: str, run_dir: Path, tell: Tell = print, **changes: dict[str, object]) -> Iterator[Pipeline]:
    """A pipeline whose light roles all work, under version 0."""
    with open_pipeline(bootstrap, run_dir, tell, **changes) as pipeline:
        pipeline.at_home = list(pipeline.specs)
        anyio.run(publish, pipeline.log())
        anyio.run(pipeline.start, *pipeline.at_home)
        yield pipeline


@contextmanager
def colocated_pipeline(bootstrap: str, run_dir: Path, tell: Tell = print, **changes: dict[str, object]) -> Iterator[Pipeline]:
    """As `looping_pipeline`; the trainer steps on the nodes of both workers, and all of them generate in between."""
    changes["rollout"] = {**changes.get("rollout", {}), "tags": ["rollout", "train"]}
    changes["scheduler"] = {**changes.get("scheduler", {}), "least_train_nodes": len(WORKERS)}
    with looping_pipeline(bootstrap, run_dir, tell, WORKERS, **changes) as pipeline:
        yield pipeline


@contextmanager
def looping_pipeline(
    bootstrap: str, run_dir: Path, tell: Tell = print, hosts: Sequence[str] = (), **changes: dict[str, object]
) -> Iterator[Pipeline]:
    """A pipeline that closes the loop by itself: source, agents, and a trainer without torch."""
    changes.setdefault("assembler", {"idle_s": 20})
    with open_pipeline(bootstrap, run_dir, tell, **changes) as pipeline:
        agents = Spec("agents", "agents", {**AGENTS, "gateway_url": pipeline.url})
        pipeline.specs |= {"source": Spec("source", "source", SOURCE), "agents": agents}
        pipeline.at_home = [*pipeline.specs, "trainer"]
        pipeline.start_trainer("trainer", hosts=hosts)
        anyio.run(pipeline.start, *pipeline.specs)
        anyio.run(pipeline.ready, "trainer")
        yield pipeline


async def publish(log: Log, files: Sequence[WeightFile] = (), digest: str = "") -> int:
    """Announce the next version, as a trainer does: 0 with its Run, another one with the Step that made it, from no session at all.

    Answers its number. Paced engines read neither files nor digest.
    """
    async with open_cas(log, TRAINING) as cas:
        version = sum(isinstance(entry.record, WeightVersion) for entry in cas.history)
        weights = digest or f"weights {version}"
        made_by: Record = Run(run="test")
        if version:
            plan = Plan(places=[], rows=[], micro_batches=[], mini_batches=[])
            made_by = Step(
                step=version, version=version - 1, published=version, plan=plan, consumed=Consumed(), weights_sha256=weights
            )  # fmt: skip
        announced = WeightVersion(
            version=version, step=version or None, files=list(files), weights_sha256=weights,
            tokenizer_sha256=NumberChat().tokenizer_sha256, template_sha256=NumberChat().template_sha256,
        )  # fmt: skip
        await cas.write([(0, made_by), (0, announced)])
    return version


async def require_whole(pipeline: Pipeline, seen: Seen, work: Work) -> Verdict:
    """Nothing lost, nothing double: each session that agents closed has one Trajectory and one Score that count, with the right value;
    agents were shown what the log says; the audit finds nothing."""
    await seen.until(lambda: not seen.unsettled(), "an end, a Trajectory and a Score of each session")
    require_answers(work, seen)
    require_self_describing(seen)
    counted, scores = seen.trajectories(), seen.first_scores()
    for key in work.closed:
        trained = sum(request.accepted for request in seen.session(key).requests.values() if request.end and request.end.why == "length")
        assert scores[Key(key.partition, counted[key].offset)].value == trained >= work.turns * work.tokens
    verdict = await pipeline.audit()
    assert not verdict.violations, "\n".join(map(str, verdict.violations))
    assert verdict.figures.lost_requests == 0
    return verdict
