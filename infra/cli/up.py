"""`up`: the whole pipeline on this machine, looked after in the foreground; or Kafka alone, in the background."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from infra.cli.where import AS_SET, Where

if TYPE_CHECKING:
    from infra.crew.crew import Crew, Event
    from infra.crew.pipeline import UpSettings
    from schemas.settings import Connection

LOOK_S = 0.25
MODEL_S = 300.0


def up(
    *,
    only: Annotated[Literal["kafka"] | None, Parameter(help="Start Kafka alone, in the background, and print its address.")] = None,
    rollouts: Annotated[int | None, Parameter(help="Rollout workers; default 1.")] = None,
    trainer: Annotated[bool | None, Parameter(help="Run a trainer here; default yes.")] = None,
    agents: Annotated[bool | None, Parameter(help="Run agents here; default yes.")] = None,
    nodes: Annotated[Literal[1, 3] | None, Parameter(help="Brokers of the local Kafka: 1, or 3 to lose one without a stop.")] = None,
    port: Annotated[int | None, Parameter(help="Client port of the first broker; default: a free one.")] = None,
    where: Where = AS_SET,
) -> None:
    """Run the whole pipeline that the settings file describes, until Ctrl-C; roles that fail are started again. Kafka stays until `down`.

    With a Kafka given (SEAMLESSFLOW_BOOTSTRAP) none is started.
    """
    from infra.cli.roles import known_sections
    from infra.crew.pipeline import UpSettings
    from schemas.settings import load_settings, require_sections

    require_sections(where.file(), known_sections())
    flags = {"nodes": nodes, "rollouts": rollouts, "trainer": trainer, "agents": agents}
    settings, _ = load_settings(UpSettings, "up", flags, file=where.file())
    connection = where.connection()
    if only == "kafka":
        print(_kafka(connection, settings.nodes, port))
        return
    file = where.file().absolute()
    _run(connection, settings, file if file.exists() else Path(os.devnull), port)


def _run(connection: Connection, settings: UpSettings, file: Path, port: int | None) -> None:
    from infra.broker.admin import require_reachable
    from infra.crew.crew import open_crew
    from infra.crew.interrupt import signals_interrupt
    from infra.crew.pipeline import AGENTS, services
    from infra.crew.roll import require_vacant

    specs = services(settings, connection.run_dir, file)
    require_vacant(connection.run_dir)
    bootstrap = connection.bootstrap or _kafka(connection, settings.nodes, port)
    connection = connection.model_copy(update={"bootstrap": bootstrap})
    require_reachable(bootstrap)
    _say("kafka", f"answers at {bootstrap}")
    _require_model(settings, connection.run_dir)
    _make_topics(connection)
    with signals_interrupt(), open_crew(connection, _tell, file) as crew:
        try:
            crew.start(specs)
            _await_all(crew, settings, connection.run_dir, file)
            while True:
                crew.look_after()
                time.sleep(LOOK_S)
        except KeyboardInterrupt:
            _say("up", "ending the roles; Kafka stays until `seamlessflow down`")
            crew.end([AGENTS] if AGENTS in crew.members else [])
            crew.end(list(crew.members))


def _await_all(crew: Crew, settings: UpSettings, run_dir: Path, file: Path) -> None:
    from infra.crew.pipeline import AGENTS, GATEWAY, address_file, agents

    crew.await_ready([GATEWAY])
    url = address_file(run_dir).read_text(encoding="utf-8").strip()
    if settings.agents:
        crew.start([agents(url, file)])
    crew.await_ready(list(crew.members))
    _say(GATEWAY, f"agents call {url}" if AGENTS in crew.members else f"bring your agents: POST {url}/v1/sessions")
    _say("up", f"{len(crew.members)} processes are ready; logs are in {run_dir / 'logs'}; Ctrl-C ends them")


def _kafka(connection: Connection, nodes: Literal[1, 3], port: int | None) -> str:
    from infra.broker.cluster import LocalKafka
    from infra.cli.local import say_fetching

    kafka = LocalKafka(connection.run_dir, lasting=True)
    say_fetching()
    kafka.start(nodes, port)
    return kafka.bootstrap


def _make_topics(connection: Connection) -> None:
    import anyio

    from infra.cli.topics import DAY_MS, DEADLINE_S
    from streams.kafka import KafkaBroker
    from streams.topics import check_topics, ensure_topics

    async def body() -> None:
        broker = KafkaBroker(connection.address(), client_id="up", deadline_s=DEADLINE_S)
        if await broker.partitions(connection.namespace + "sessions"):
            await check_topics(broker, connection.namespace)
        else:
            retention_ms = int(connection.audit_retention_days * DAY_MS)
            await ensure_topics(broker, connection.namespace, connection.session_partitions, retention_ms)

    anyio.run(body)


def _require_model(settings: UpSettings, run_dir: Path) -> None:
    """Make the demo's small model where no other was named: so that the first `up` works without any preparation."""
    from infra.crew.pipeline import model_dir
    from models.chat import CHAT_FILE
    from schemas.errors import SetupError

    folder = model_dir(settings, run_dir)
    if (folder / CHAT_FILE).exists():
        return
    if settings.model_dir is not None:
        raise SetupError(f"{folder} holds no model (no {CHAT_FILE}): correct model_dir in [up], or leave it out for the demo's small one")
    _say("model", f"making the demo's small one in {folder}")
    command = [sys.executable, "-m", "infra.demo.warm_up", str(folder), "0"]
    made = subprocess.run(command, capture_output=True, text=True, timeout=MODEL_S, check=False)
    if made.returncode:
        raise SetupError(f"the model could not be made: {(made.stderr.strip() or str(made.returncode)).splitlines()[-1]}")


def _tell(event: Event) -> None:
    _say(event.member, event.what)


def _say(member: str, what: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {member:11} {what}", flush=True)
