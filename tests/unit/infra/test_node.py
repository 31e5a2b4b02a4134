"""What a node's log says, as one line for the operator."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from infra.broker.node import diagnose
from infra.broker.ports import choose_ports, is_free, require_free
from schemas.errors import SetupError


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("java.io.IOException: No space left on device", "the disk is full"),
        ("java.net.BindException: Address already in use", "a port is taken"),
        ("KafkaException: Failed to acquire lock on file .lock in /run/n1", "another broker uses this data folder"),
    ],
)
def test_a_known_cause_is_named_with_the_log(tmp_path: Path, line: str, expected: str) -> None:
    log = tmp_path / "n1.log"
    log.write_text(f"INFO starting\n{line}\n\tat kafka.Kafka\n")
    assert diagnose(log).startswith(expected)
    assert str(log) in diagnose(log)


def test_an_unknown_cause_shows_the_last_lines(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    log.write_text("one\ntwo\n\nthree\n\tat kafka.Kafka.main(Kafka.scala)\n")
    assert diagnose(log, lines=2) == f"{log} ends with: two | three"


def test_no_log_is_said_too(tmp_path: Path) -> None:
    assert diagnose(tmp_path / "n1.log").endswith("ends with: (nothing)")


def test_a_taken_port_is_named_with_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not is_free(port)
        with pytest.raises(SetupError, match=f"port {port} on 127.0.0.1 is taken.*--port"):
            choose_ports(1, port)
        with pytest.raises(SetupError, match=f"port {port} "):
            require_free([port])


def test_three_nodes_get_nine_different_ports() -> None:
    ports = [port for node in choose_ports(3) for port in node.all()]
    assert len(set(ports)) == 9


def test_the_asked_port_is_the_first_nodes() -> None:
    (drawn,) = choose_ports(1)
    assert choose_ports(1, drawn.client)[0].client == drawn.client
