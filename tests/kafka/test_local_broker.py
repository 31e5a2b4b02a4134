"""The life of a local Kafka: start, use, faults, stop. A second client (confluent-kafka) looks at what is left."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio.to_thread
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from infra.broker import cluster
from infra.broker.cluster import LocalKafka, local_kafka
from infra.broker.jvm import QUICK_START
from infra.broker.ports import answers
from infra.broker.process import start_time
from infra.cli.main import execute
from schemas.errors import SetupError, UsageError
from streams.topics import topic_specs

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def installed() -> None:
    """Skips the module where Java or the jars are not to be had."""
    try:
        cluster.install()
    except SetupError as missing:
        pytest.skip(f"no local Kafka: {missing}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One run folder for the tests that leave its data whole; each brings its cluster back if the one before stopped it."""
    folder = tmp_path_factory.mktemp("local")
    yield folder
    LocalKafka(folder).stop()


@pytest.fixture
def kafka(folder: Path) -> LocalKafka:
    kafka = LocalKafka(folder)
    kafka.start()
    return kafka


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"letters-{secrets.token_hex(4)}"
    create(kafka.bootstrap, name)
    return name


def pids(kafka: LocalKafka) -> list[int]:
    assert kafka.state is not None
    return [node.process.pid for node in kafka.state.nodes if node.process is not None]


def command_line(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def await_condition(holds: Callable[[], bool], deadline_s: float = 10.0) -> None:
    until = time.monotonic() + deadline_s
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def create(bootstrap: str, topic: str, copies: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=copies)])[topic].result(20)


def write(bootstrap: str, topic: str, value: bytes) -> None:
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
    producer.produce(topic, value, b"key", partition=0, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failures == []


def read_all(bootstrap: str, topic: str) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0})
    try:
        place = TopicPartition(topic, 0, 0)
        _, end = consumer.get_watermark_offsets(place, timeout=20)
        consumer.assign([place])
        return [message.value() for message in consumer.consume(end, timeout=20)]  # type: ignore[misc]
    finally:
        consumer.close()


def test_records_survive_kill_9_and_a_restart_on_the_same_data_and_port(kafka: LocalKafka, topic: str) -> None:
    address, first = kafka.bootstrap, pids(kafka)
    write(address, topic, b"before")
    kafka.kill()
    assert kafka.running() == []
    kafka.start()
    assert kafka.bootstrap == address
    assert pids(kafka) != first
    write(address, topic, b"after")
    assert read_all(address, topic) == [b"before", b"after"]


def test_start_on_a_running_cluster_changes_nothing(kafka: LocalKafka, folder: Path) -> None:
    before = kafka.state
    LocalKafka(folder).start()
    assert kafka.state == before


def test_stop_leaves_no_process_and_keeps_the_data(kafka: LocalKafka, topic: str) -> None:
    write(kafka.bootstrap, topic, b"kept")
    (pid,) = pids(kafka)
    kafka.stop()
    assert start_time(pid) is None
    kafka.start()
    assert read_all(kafka.bootstrap, topic) == [b"kept"]


def test_a_frozen_node_works_again_after_its_thaw_and_can_be_stopped_frozen(kafka: LocalKafka, topic: str) -> None:
    (pid,) = pids(kafka)
    kafka.freeze()
    await_condition(lambda: is_stopped(pid))
    kafka.thaw()
    write(kafka.bootstrap, topic, b"thawed")
    kafka.freeze()
    kafka.stop()
    assert start_time(pid) is None


def test_a_recycled_pid_is_not_killed(kafka: LocalKafka, folder: Path) -> None:
    """The state file of a cluster that is gone names the pid of somebody else."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(120)"])
    try:
        kafka.stop()
        file = folder / "kafka/state.json"
        state = json.loads(file.read_text())
        state["nodes"][0]["process"] = {"pid": stranger.pid, "started": "another boot/1"}
        file.write_text(json.dumps(state))
        kafka.stop()
        kafka.start()
        assert stranger.poll() is None
        assert pids(kafka) != [stranger.pid]
    finally:
        stranger.kill()
        stranger.wait()


def test_a_taken_port_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 is taken"):
            LocalKafka(tmp_path).start(port=port)


def test_a_port_taken_while_the_node_was_down_is_one_line(kafka: LocalKafka) -> None:
    kafka.stop()
    port = int(kafka.bootstrap.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)), pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 is taken"):
        kafka.start()


def test_another_size_in_the_same_folder_is_refused(kafka: LocalKafka) -> None:
    with pytest.raises(UsageError, match="holds a cluster with 1 nodes: ask for that, or name another run folder"):
        kafka.start(3)


def test_a_start_that_fails_shows_the_log_and_leaves_no_process(tmp_path: Path) -> None:
    kafka = LocalKafka(tmp_path)
    with pytest.raises(SetupError, match=r"was not ready within 0 s: .*n1\.log"):
        kafka.start(deadline_s=0.0)
    assert kafka.running() == []
    (tmp_path / "kafka/n1/meta.properties").write_text("version=1\ncluster.id=another\nnode.id=7\n")
    with pytest.raises(SetupError, match=r"node 1 of the local Kafka ended: .*n1\.log ends with: .*node id"):
        kafka.start()
    assert kafka.running() == []


def test_the_command_line_starts_creates_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--run-dir", str(tmp_path)]
    kafka = LocalKafka(tmp_path)
    try:
        assert execute(["up", "--only", "kafka", *flags]) == 0
        assert capsys.readouterr().out == kafka.bootstrap + "\n"
        assert execute(["topics", *flags]) == 12
        assert execute(["topics", "--create", *flags]) == 0
        assert execute(["topics", *flags]) == 0
        assert execute(["status", *flags]) == 0
        assert "1 brokers answer" in capsys.readouterr().out
        check_topics_as_created(kafka.bootstrap)
        check_tail(kafka.bootstrap, flags, capsys)
    finally:
        assert execute(["down", *flags]) == 0
    assert kafka.running() == []


def check_topics_as_created(bootstrap: str) -> None:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=20).topics
    counts = {name: len(topic.partitions) for name, topic in found.items() if name.startswith("seamlessflow.")}
    assert counts == {spec.name: spec.partitions for spec in topic_specs("seamlessflow.", 64)}


def check_tail(bootstrap: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for value in (b"\x81\xa4type\xa4Tick", b"\xc1corrupt", b"\x81\xa4type\xa4Last"):
        write(bootstrap, "seamlessflow.nodes", value)
    capsys.readouterr()
    assert execute(["tail", "nodes", "-o", "beginning", "-e", "-f", "json", *flags]) == 0
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [record["offset"] for record in records] == [0, 1, 2]
    assert [record["value"].get("type", "corrupt") for record in records] == ["Tick", "corrupt", "Last"]
    assert execute(["tail", "nodes", "-o", "-1", "-c", "1", "-p", "0", *flags]) == 0
    assert " 0@2 Last " in capsys.readouterr().out
    assert execute(["tail", "nothing", "-e", *flags]) == 12


@pytest.mark.anyio
async def test_three_nodes_start_lose_one_and_stop(tmp_path: Path) -> None:
    async with local_kafka(tmp_path, nodes=3) as kafka:
        processes = pids(kafka)
        assert len(processes) == 3
        await anyio.to_thread.run_sync(create, kafka.bootstrap, "letters", 3)
        kafka.kill(2)
        await anyio.to_thread.run_sync(write, kafka.bootstrap, "letters", b"by two of three")
        await anyio.to_thread.run_sync(kafka.restart, 2)
        assert kafka.running() == [1, 2, 3]
        assert await anyio.to_thread.run_sync(read_all, kafka.bootstrap, "letters") == [b"by two of three"]
        processes = pids(kafka)
    assert [pid for pid in processes if start_time(pid) is not None] == []


def test_a_broker_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    code = "import sys; from infra.cli.main import execute; sys.exit(execute(['up', '--only', 'kafka', '--run-dir', sys.argv[1]]))"
    kafka = LocalKafka(tmp_path)
    try:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
        assert done.stdout == kafka.bootstrap + "\n"
        assert kafka.running() == [1]
        assert QUICK_START.encode() not in command_line(pids(kafka)[0])  # it is to last
    finally:
        kafka.stop()


def test_a_broker_of_a_short_run_is_quick_to_start(kafka: LocalKafka) -> None:
    assert QUICK_START.encode() in command_line(pids(kafka)[0])


def test_a_broker_that_dies_while_it_is_asked_to_start_is_started_again(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pids(kafka)

    def kill_then_ask(port: int) -> bool:
        if pids(kafka) == first:
            os.kill(first[0], signal.SIGKILL)
        return answers(port)

    monkeypatch.setattr(cluster, "answers", kill_then_ask)
    kafka.start()
    assert kafka.running() == [1]
    assert pids(kafka) != first
