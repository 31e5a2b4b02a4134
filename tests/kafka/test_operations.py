"""What an operator does, on a real Kafka with real processes: `up`, `status`, `pause` in mid-generation, `drain`, a second gateway, Ctrl-C.

The engine is paced, so that a call of known length is under way for seconds; what happened to it is read from the log by a second client.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from openai import OpenAI

from infra.broker.admin import SILENT
from infra.broker.cluster import LocalKafka
from infra.broker.process import start_time
from infra.cli.main import execute
from infra.crew.roll import read_roll
from models.chat import NumberChat
from schemas.errors import SetupError
from schemas.topics import TRAINING
from schemas.training import Run, WeightVersion
from streams.cas import open_cas
from streams.kafka import KafkaBroker
from streams.log import Log
from streams.topics import ensure_topics

pytestmark = pytest.mark.timeout(300)

DEADLINE_S = 120.0
PARTITIONS = 4
TOKENS, TOKENS_PER_S = 480, 40
"""A call lasts 12 seconds: on a loaded machine, too, it is paused in its middle."""


@dataclass
class Pipeline:
    """A running `up`. `flags` say where it is."""

    process: subprocess.Popen[str]
    run_dir: Path
    flags: list[str]
    lines: list[str]

    @property
    def url(self) -> str:
        return (self.run_dir / "gateway.url").read_text().strip()

    def said(self, text: str) -> bool:
        return any(text in line for line in self.lines)

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        capsys.readouterr()
        assert execute(["status", "--json", *self.flags]) == 0
        status: dict[str, Any] = json.loads(capsys.readouterr().out)
        return status

    def records(self, session: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        """A session's records and the Claims around them, by `tail`, in log order."""
        partition, offset, _ = session.split("-")
        capsys.readouterr()
        assert execute(["tail", "sessions", "-p", partition, "-o", offset, "-e", "-f", "json", *self.flags]) == 0
        found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        values = [{**record["value"], "offset": record["offset"]} for record in found]
        return [value for value in values if value["type"] == "Claim" or value.get("session") == int(offset)]


def await_condition(holds: Callable[[], object], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)


async def prepare(bootstrap: str, namespace: str) -> None:
    """Topics, and a version 0 that the paced engine may say it serves."""
    log = Log(KafkaBroker(bootstrap, client_id="test"), namespace, "test")
    await ensure_topics(log.broker, namespace, PARTITIONS)
    async with open_cas(log, TRAINING) as cas:
        version = WeightVersion(
            version=0, files=[], weights_sha256="w", tokenizer_sha256=NumberChat().tokenizer_sha256, template_sha256="t"
        )
        await cas.write([(0, Run(run="test")), (0, version)])


def settings_file(folder: Path) -> Path:
    NumberChat().save(folder / "model")
    file = folder / "seamlessflow.toml"
    file.write_text(
        f'[up]\nrollouts = 2\ntrainer = false\nagents = false\nmodel_dir = "{folder / "model"}"\n'
        f'[rollout]\nengine = "paced"\npaced_tokens_per_s = {TOKENS_PER_S}\nflush_s = 0.2\nreport_s = 0.3\n'
        "[scheduler]\ntick_s = 0.3\n[source]\nsteps = 0\nevaluate_first = false\nevaluate_last = false\nevaluate_every = 0\n"
    )
    return file


@pytest.fixture(scope="module")
def pipeline(kafka_bootstrap: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    """`seamlessflow up` with two paced workers; ended by Ctrl-C, as the last test expects, or here."""
    folder, namespace = tmp_path_factory.mktemp("up"), f"test-{secrets.token_hex(4)}."
    (folder / "model").mkdir()
    anyio.run(prepare, kafka_bootstrap, namespace)
    where = ["--bootstrap", kafka_bootstrap, "--namespace", namespace, "--run-dir", str(folder / "run")]
    command = [sys.executable, "-m", "infra.cli.main", "up", *where, "--config", str(settings_file(folder))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        running = Pipeline(process, folder / "run", where, [])
        reader = threading.Thread(target=lambda: running.lines.extend(process.stdout or ()))
        reader.start()
        try:
            await_condition(lambda: running.said("processes are ready") or process.poll() is not None, "the pipeline is ready")
            assert process.poll() is None, running.lines
            assert execute(["resume", *where]) == 0  # nothing is paused: waits until everything has an owner
            yield running
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)
            reader.join()


def open_session(url: str) -> str:
    session: str = httpx.post(f"{url}/v1/sessions", json={}, timeout=DEADLINE_S).json()["id"]
    return session


def client(url: str, session: str) -> OpenAI:
    return OpenAI(base_url=f"{url}/s/{session}/v1", api_key="none", max_retries=0, timeout=DEADLINE_S)


def spans_by_epoch(records: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    spans: dict[int, list[dict[str, Any]]] = {}
    for record in records:
        if record["type"] == "Span":
            spans.setdefault(record["epoch"], []).append(record)
    return spans


def test_status_says_who_lives_and_who_owns_what_and_why(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    await_condition(lambda: len(pipeline.status(capsys)["owners"]) == 2, "both workers own something")
    status = pipeline.status(capsys)
    assert [(node["node"], node["life"], node["state"]) for node in status["nodes"]] == [
        ("rollout-0", "alive", "serving"), ("rollout-1", "alive", "serving"),
    ]  # fmt: skip
    assert sorted(len(owner["partitions"]) for owner in status["owners"]) == [2, 2]
    assert all("its share is" in owner["reason"] for owner in status["owners"])
    assert (status["paused"], status["dead_letters"], status["training"]["version"]) == (None, 0, 0)
    assert [each["role"] for each in status["lag"]] == ["assembler", "reward", "agents"]
    assert execute(["status", *pipeline.flags]) == 0
    assert "node         rollout-0: alive, serving, version 0, partitions" in capsys.readouterr().out


def test_a_call_that_is_paused_in_its_middle_is_answered_after_resume(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    session = open_session(pipeline.url)
    answers: list[Any] = []

    def ask() -> None:
        asked = [{"role": "user", "content": "1 2 3"}]
        answers.append(client(pipeline.url, session).chat.completions.create(model="m", messages=asked, max_tokens=TOKENS))  # type: ignore[call-overload]

    waiting = threading.Thread(target=ask)
    waiting.start()
    await_condition(lambda: len(spans_by_epoch(pipeline.records(session, capsys))) == 1, "the call generates")
    assert execute(["pause", "--reason", "rack move", *pipeline.flags]) == 0
    try:
        status = pipeline.status(capsys)
        before = sum(len(span["tokens"]) for spans in spans_by_epoch(pipeline.records(session, capsys)).values() for span in spans)
        assert execute(["pause", *pipeline.flags]) == 0  # once more changes nothing
    finally:
        assert execute(["resume", *pipeline.flags]) == 0
    assert status["paused"]["reason"] == "rack move"
    (nobody,) = status["owners"]
    assert (nobody["node"], nobody["partitions"], nobody["cause"], nobody["reason"]) == (None, [0, 1, 2, 3], "moved", "paused")
    assert 0 < before < TOKENS
    waiting.join(DEADLINE_S)
    assert answers[0].usage.completion_tokens == TOKENS
    first, second = spans_by_epoch(pipeline.records(session, capsys)).values()
    assert sum(len(span["tokens"]) for span in first) == before
    assert second[0]["start"] == before


def test_a_drained_node_owns_nothing_until_it_is_undrained(pipeline: Pipeline, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["drain", "rollout-7", *pipeline.flags]) == 2
    assert "there is no rollout node 'rollout-7'; there are rollout-0, rollout-1" in capsys.readouterr().err
    assert execute(["drain", "rollout-0", "--reason", "driver", *pipeline.flags]) == 0
    status = pipeline.status(capsys)
    assert {owner["node"] for owner in status["owners"]} == {"rollout-1"}
    assert status["draining"]["rollout-0"]["reason"] == "driver"
    assert execute(["undrain", "rollout-0", *pipeline.flags]) == 0
    status = pipeline.status(capsys)
    assert status["draining"] == {}
    assert "rollout-0" in {owner["node"] for owner in status["owners"]}


def test_a_second_gateway_continues_a_session_on_exactly_the_recorded_ids(
    pipeline: Pipeline, capsys: pytest.CaptureFixture[str]
) -> None:
    file = pipeline.run_dir / "second.url"
    settings = ["--set", "name=gateway-1", "--set", f"address_file={file}", "--set", f"model_dir={pipeline.run_dir.parent / 'model'}"]
    command = [sys.executable, "-m", "infra.cli.main", "run", "gateway", *pipeline.flags, *settings]
    log = file.with_suffix(".log").open("w")
    with log, subprocess.Popen(command, stdout=log, stderr=log) as second:
        try:
            await_condition(file.exists, "the second gateway listens")
            url = file.read_text().strip()
            check_two_turns(pipeline, url, capsys)
            taken = subprocess.run([*command, "--set", f"port={url.rpartition(':')[2]}"], capture_output=True, text=True, check=False)
        finally:
            second.terminate()
    assert taken.returncode == SetupError.exit_code
    assert "cannot listen on 127.0.0.1" in taken.stderr.splitlines()[-1]


def check_two_turns(pipeline: Pipeline, second_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    session = open_session(pipeline.url)
    messages: list[Any] = [{"role": "user", "content": "1 2 3"}]
    first = client(pipeline.url, session).chat.completions.create(model="m", messages=messages, max_tokens=8)
    messages += [{"role": "assistant", "content": first.choices[0].message.content}, {"role": "user", "content": "4"}]
    with client(second_url, session).chat.completions.create(model="m", messages=messages, max_tokens=8, stream=True) as stream:
        assert sum(1 for chunk in stream if chunk.choices and chunk.choices[0].delta.content) >= 1
    asked = [record for record in pipeline.records(session, capsys) if record["type"] == "Request"]
    assert [record.get("base") for record in asked] == [None, asked[0]["offset"]]
    assert asked[1]["base_length"] == len(asked[0]["tokens"]) + 8
    assert len(asked[1]["tokens"]) < len(asked[0]["tokens"]) + 8  # the suffix alone


def test_a_killed_role_is_told_and_started_again(pipeline: Pipeline) -> None:
    roll = read_roll(pipeline.run_dir)
    assert roll is not None
    roll.members["reward"].signal(signal.SIGKILL)
    await_condition(lambda: pipeline.said("reward      ended: killed by SIGKILL"), "the event is told")
    await_condition(lambda: pipeline.said("reward      started again"), "it is started again")


def test_a_run_folder_takes_one_pipeline(pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model").mkdir()
    assert execute(["up", *pipeline.flags, "--config", str(settings_file(tmp_path))]) == SetupError.exit_code
    assert f"process {pipeline.process.pid} runs a pipeline in" in capsys.readouterr().err


def test_ctrl_c_ends_every_role(pipeline: Pipeline) -> None:
    roll = read_roll(pipeline.run_dir)
    assert roll is not None
    pipeline.process.send_signal(signal.SIGINT)
    assert pipeline.process.wait(DEADLINE_S) == 0
    assert [name for name, process in roll.members.items() if start_time(process.pid) == process.started] == []
    assert read_roll(pipeline.run_dir) is None


def test_a_disk_that_gets_full_ends_the_broker_and_is_one_line(tmp_path: Path) -> None:
    """8 MiB for a broker's data. A mount needs root; without it the test is skipped."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(disk)], capture_output=True, check=False)
    if os.geteuid() != 0 or mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        kafka = LocalKafka(disk)
        kafka.start()
        fill(kafka.bootstrap)
        await_condition(lambda: not kafka.running(), "the broker ends")
        with pytest.raises(SetupError, match=r"(the disk is full: free some|cannot be written: No space left on device; free disk)"):
            kafka.start()
    finally:
        LocalKafka(disk).stop()
        subprocess.run(["umount", "-l", str(disk)], check=True)


def fill(bootstrap: str) -> None:
    """Write 14 MB that do not compress, or as much of it as there is room for."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("full", num_partitions=1, replication_factor=1)])["full"].result(DEADLINE_S)
    producer = Producer({"bootstrap.servers": bootstrap, "message.timeout.ms": 10_000, "log_level": 0}, logger=SILENT)
    for _ in range(16):
        producer.produce("full", secrets.token_bytes(900_000))
    producer.flush(20)
