"""Settings: which layer wins, where a value came from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, ValidationError

from schemas.errors import UsageError
from schemas.settings import Connection, load_settings, require_sections


class Kettle(BaseModel):
    """A role of this test."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: int = 8000
    hosts: list[str] = []
    hot: bool = False


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "seamlessflow.toml"
    path.write_text('[kettle]\nport = 1\nhosts = ["file"]\n\n[connection]\nnamespace = "file."\n')
    return path


def test_each_layer_covers_the_one_below(file: Path) -> None:
    environment = {"SEAMLESSFLOW_KETTLE_HOSTS": '["a", "b"]', "SEAMLESSFLOW_KETTLE_PORT": "2"}
    settings, sources = load_settings(Kettle, "kettle", {"port": 3, "hot": None}, file=file, environment=environment)
    assert settings == Kettle(port=3, hosts=["a", "b"], hot=False)
    assert sources == {"port": "flag", "hosts": "SEAMLESSFLOW_KETTLE_HOSTS", "hot": "default"}


def test_the_file_covers_defaults(file: Path) -> None:
    settings, sources = load_settings(Kettle, "kettle", file=file, environment={})
    assert settings == Kettle(port=1, hosts=["file"])
    assert sources == {"port": str(file), "hosts": str(file), "hot": "default"}


def test_no_file_and_nothing_set_gives_defaults(tmp_path: Path) -> None:
    settings, sources = load_settings(Kettle, "kettle", file=tmp_path / "none.toml", environment={})
    assert settings == Kettle()
    assert set(sources.values()) == {"default"}


def test_the_connection_has_short_variables(file: Path) -> None:
    environment = {"SEAMLESSFLOW_BOOTSTRAP": "host:1", "SEAMLESSFLOW_RUN_DIR": "runs/x", "SEAMLESSFLOW_KETTLE_PORT": "2"}
    settings, sources = load_settings(Connection, "connection", file=file, environment=environment)
    assert settings == Connection(bootstrap="host:1", run_dir=Path("runs/x"), namespace="file.")
    assert (sources["bootstrap"], sources["namespace"]) == ("SEAMLESSFLOW_BOOTSTRAP", str(file))


def test_the_process_environment_alone_changes_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOTSTRAP", "elsewhere:1")
    monkeypatch.setenv("PORT", "9")
    assert Connection().bootstrap is None
    assert Kettle().port == 8000


def test_an_unknown_key_in_the_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "seamlessflow.toml"
    path.write_text("[kettle]\nprot = 1\n")
    with pytest.raises(UsageError, match=r"seamlessflow\.toml \[kettle\]: unknown key prot; there are port, hosts, hot"):
        load_settings(Kettle, "kettle", file=path, environment={})


def test_an_unknown_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="SEAMLESSFLOW_KETTLE_…: unknown key prot"):
        load_settings(Kettle, "kettle", file=tmp_path / "none", environment={"SEAMLESSFLOW_KETTLE_PROT": "1"})


def test_an_unknown_flag_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="flags: unknown key prot"):
        load_settings(Kettle, "kettle", {"prot": 1}, file=tmp_path / "none", environment={})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("port = 1", "must stand in a table"),
        ("[kettle", "cannot be read"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "seamlessflow.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match=rf"{path}.*{expected}"):
        load_settings(Kettle, "kettle", file=path, environment={})


def test_an_unknown_table_is_named(file: Path) -> None:
    require_sections(file, ["connection", "kettle"])
    with pytest.raises(UsageError, match="unknown table kettle; there are connection"):
        require_sections(file, ["connection"])


def test_a_wrong_value_is_named_with_its_source(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kettle\.port \(from SEAMLESSFLOW_KETTLE_PORT\): .*integer.* not 'much'"):
        load_settings(Kettle, "kettle", file=tmp_path / "none", environment={"SEAMLESSFLOW_KETTLE_PORT": "much"})


def test_a_list_in_the_environment_is_json(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"SEAMLESSFLOW_KETTLE_….*hosts.*JSON"):
        load_settings(Kettle, "kettle", file=tmp_path / "none", environment={"SEAMLESSFLOW_KETTLE_HOSTS": "a,b"})


def test_models_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Connection().bootstrap = "x"  # type: ignore[misc]


def test_without_an_address_and_without_a_local_kafka_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="set SEAMLESSFLOW_BOOTSTRAP, or run `seamlessflow up --only kafka`"):
        Connection(run_dir=tmp_path).address()


def test_a_given_address_needs_no_local_kafka(tmp_path: Path) -> None:
    assert Connection(run_dir=tmp_path, bootstrap="host:1").address() == "host:1"
