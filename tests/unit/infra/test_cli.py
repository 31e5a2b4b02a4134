"""The command line's edge: exit codes, one line per error, and what it does not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from infra.cli.main import COMMANDS, execute
from infra.cli.roles import ROLES, load
from schemas.errors import UsageError

HEAVY = ("torch", "transformers", "vllm", "confluent_kafka", "aiokafka", "pydantic", "numpy")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom infra.cli.main import execute\nassert execute(['--help']) == 0\n"
        f"print('heavy:', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["--help"]) == 0
    printed = capsys.readouterr().out
    assert [name for name in COMMANDS if f" {name} " not in printed] == []


@pytest.mark.parametrize("command", [*COMMANDS, "config show", "audit verify"])
def test_every_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command.split(), "--help"]) == 0
    assert f"seamlessflow {command}" in capsys.readouterr().out


def test_an_error_is_one_line_and_its_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert execute(["status", "--run-dir", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("seamlessflow: no Kafka: set SEAMLESSFLOW_BOOTSTRAP")


def test_an_unknown_option_is_a_usage_error() -> None:
    assert execute(["down", "--nope"]) == 2


@pytest.mark.parametrize("command", ["status", "topics", "tail sessions"])
def test_an_address_that_does_not_answer_is_exit_code_10(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([*command.split(), "--bootstrap", "127.0.0.1:1"]) == 10
    assert capsys.readouterr().err.startswith("seamlessflow: 127.0.0.1:1 does not answer: Connection refused (start it with")


def test_a_malformed_address_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["status", "--bootstrap", "nowhere"]) == 2
    assert "'nowhere' is not an address: expected host:port" in capsys.readouterr().err


def test_down_without_a_broker_is_no_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert execute(["down", "--run-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"no Kafka ran in {tmp_path}\n"
    assert list(tmp_path.iterdir()) == []


def test_errors_lists_each_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["errors"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert sorted({int(line.split()[0]) for line in printed}) == [1, 2, 10, 11, 12, 20, 21, 22, 23, 30, 40, 41, 50, 60]


def test_config_show_names_the_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "flow.toml"
    file.write_text('[connection]\nnamespace = "mine."\n')
    monkeypatch.setenv("SEAMLESSFLOW_SESSION_PARTITIONS", "16")
    assert execute(["config", "show", "--config", str(file), "--bootstrap", "host:1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["connection.bootstrap", "host:1", "flag"] in rows
    assert ["connection.namespace", "mine.", str(file)] in rows
    assert ["connection.session_partitions", "16", "SEAMLESSFLOW_SESSION_PARTITIONS"] in rows
    assert ["connection.audit_retention_days", "7.0", "default"] in rows


def test_an_unknown_role_is_named_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "kettle", "--bootstrap", "host:1"]) == 2
    assert f"there is no role 'kettle'; there are {', '.join(ROLES)}" in capsys.readouterr().err


def test_a_missing_module_of_a_role_is_named() -> None:
    with pytest.raises(UsageError, match="nowhere:serve needs nowhere, which is not installed"):
        load("nowhere:serve")


def test_roles_are_loaded_by_path() -> None:
    assert load("infra.cli.roles:ROLES") is ROLES


@pytest.mark.parametrize("role", ROLES)
def test_every_role_has_a_frozen_model_that_forbids_unknown_keys(role: str) -> None:
    model = ROLES[role].settings()
    assert (model.model_config.get("frozen"), model.model_config.get("extra")) == (True, "forbid")


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_where_the_table_says(role: str) -> None:
    assert callable(load(ROLES[role].role_path))


def test_a_setting_of_a_role_is_checked_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["run", "scheduler", "--bootstrap", "127.0.0.1:1", "--set", "tock_s=1"]) == 2
    assert "flags: unknown key tock_s; there are tick_s" in capsys.readouterr().err
