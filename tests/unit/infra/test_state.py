"""The state file of a local cluster."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.broker.process import Process
from infra.broker.properties import NodePorts
from infra.broker.state import ClusterState, NodeState, bootstrap_of, read_state, write_state
from schemas.errors import UsageError
from schemas.settings import LOCAL_STATE, Connection

PORTS = [NodePorts(11, 12, 13), NodePorts(21, 22, 23)]
STATE = ClusterState(
    bootstrap=bootstrap_of(PORTS),
    cluster_id="id",
    kafka_version="4.3.1",
    nodes=tuple(NodeState(ports=each) for each in PORTS),
)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = STATE.with_process(2, Process(77, "boot/1"))
    write_state(tmp_path / "state.json", state)
    assert read_state(tmp_path / "state.json") == state
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_the_file_says_what_other_programs_look_for(tmp_path: Path) -> None:
    write_state(tmp_path / "state.json", STATE.with_process(2, Process(77, "boot/1")))
    assert json.loads((tmp_path / "state.json").read_text()) == {
        "bootstrap": "127.0.0.1:11,127.0.0.1:21",
        "cluster_id": "id",
        "kafka_version": "4.3.1",
        "nodes": [
            {"ports": {"client": 11, "controller": 12, "internal": 13, "advertised": None}, "process": None},
            {"ports": {"client": 21, "controller": 22, "internal": 23, "advertised": None}, "process": {"pid": 77, "started": "boot/1"}},
        ],
    }


def test_settings_find_the_address_in_it(tmp_path: Path) -> None:
    (tmp_path / LOCAL_STATE).parent.mkdir()
    write_state(tmp_path / LOCAL_STATE, STATE)
    assert Connection(run_dir=tmp_path).address() == "127.0.0.1:11,127.0.0.1:21"


def test_no_file_is_no_cluster(tmp_path: Path) -> None:
    assert read_state(tmp_path / "state.json") is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"bootstrap": 1}'])
def test_another_file_is_named_with_a_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    with pytest.raises(UsageError, match=r"state\.json is not the state of a local Kafka .*remove it"):
        read_state(tmp_path / "state.json")


def test_one_node_changes_and_the_others_stay() -> None:
    changed = STATE.with_process(1, Process(5, "x"))
    assert changed.nodes == (NodeState(ports=PORTS[0], process=Process(5, "x")), STATE.nodes[1])
    assert STATE.nodes[0].process is None


def test_a_recorded_process_of_another_boot_does_not_run() -> None:
    state = STATE.with_process(1, Process(1, "an earlier boot/1"))
    assert not state.nodes[0].is_running
    assert state.running() == []


def test_clients_of_a_proxied_cluster_are_sent_to_the_advertised_ports_and_others_pass_them_by() -> None:
    ports = [NodePorts(11, 12, 13, 14), NodePorts(21, 22, 23, 24)]
    state = ClusterState(
        bootstrap=bootstrap_of(ports), cluster_id="id", kafka_version="4.3.1", nodes=tuple(NodeState(ports=each) for each in ports)
    )  # fmt: skip
    assert state.bootstrap == "127.0.0.1:14,127.0.0.1:24"
    assert state.direct == "127.0.0.1:13,127.0.0.1:23"
    assert STATE.direct == STATE.bootstrap
