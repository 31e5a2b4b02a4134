"""Kafka's jars: nothing half is ever taken for whole."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.broker.cache import cache_dir, filled
from infra.broker.jars import REQUIRED, pom_text, resolve
from schemas.errors import SetupError


def complete(folder: Path) -> None:
    for name in REQUIRED:
        (folder / name).write_bytes(b"jar")


def incomplete(folder: Path) -> None:
    (folder / REQUIRED[0]).write_bytes(b"jar")


def failing(folder: Path) -> None:
    raise SetupError("mvn: no network")


def test_the_cache_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "seamlessflow"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cache_dir() == Path("/home/someone/.cache/seamlessflow")


def test_a_filled_folder_is_not_filled_again(tmp_path: Path) -> None:
    filled(tmp_path / "a" / "4.3.1", complete)
    assert sorted(path.name for path in filled(tmp_path / "a" / "4.3.1", failing).iterdir()) == sorted(REQUIRED)


def test_a_failed_fill_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(SetupError):
        filled(tmp_path / "4.3.1", failing)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_fill_leaves_no_final_name_and_the_next_one_succeeds(tmp_path: Path) -> None:
    code = (
        "import pathlib, sys, time; from infra.broker.cache import filled\n"
        "def slow(folder): (folder / 'half.jar').write_bytes(b'x'); print('half', flush=True); time.sleep(60)\n"
        "filled(pathlib.Path(sys.argv[1]), slow)"
    )
    target = tmp_path / "4.3.1"
    with subprocess.Popen([sys.executable, "-c", code, str(target)], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "half\n"
        child.send_signal(signal.SIGKILL)
    assert not target.exists()
    assert {path.name for path in filled(target, complete).iterdir()} == set(REQUIRED)


def test_the_loser_of_a_race_uses_the_winners_folder(tmp_path: Path) -> None:
    target = tmp_path / "4.3.1"

    def overtaken(folder: Path) -> None:
        (folder / "loser").touch()
        target.mkdir()
        (target / "winner").touch()

    assert [path.name for path in filled(target, overtaken).iterdir()] == ["winner"]
    assert [path.name for path in tmp_path.iterdir()] == ["4.3.1"]


def test_the_second_way_is_taken_when_the_first_fails(tmp_path: Path) -> None:
    resolve(tmp_path, [failing, complete])
    assert {path.name for path in tmp_path.iterdir()} == set(REQUIRED)


def test_what_a_failed_way_left_is_removed(tmp_path: Path) -> None:
    def leaves_an_old_client(folder: Path) -> None:
        (folder / "kafka-clients-3.9.1.jar").touch()

    resolve(tmp_path, [leaves_an_old_client, complete])
    assert not (tmp_path / "kafka-clients-3.9.1.jar").exists()


def test_all_reasons_stand_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as failure:
        resolve(tmp_path, [failing, incomplete])
    assert str(failure.value) == (
        "Kafka 4.3.1 is not to be had: mvn: no network; kafka-clients-4.3.1.jar, log4j-core-2.25.1.jar did not arrive. "
        "Check the network, or give SEAMLESSFLOW_BOOTSTRAP"
    )


def test_the_pom_names_the_client_library_itself() -> None:
    line = "<groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId><version>4.3.1</version>"
    assert f"    <dependency>{line}</dependency>\n" in pom_text()
