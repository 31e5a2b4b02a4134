"""Plug-ins are found where people write them, and what cannot be loaded is said with its remedy."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from schemas.errors import UsageError
from workers.plugin import load_plugin


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def test_a_module_of_the_working_folder_is_found(working_folder: Path) -> None:
    (working_folder / "a_task_of_mine.py").write_text("def double(x):\n    return 2 * x\n")
    assert load_plugin("a_task_of_mine:double")(21) == 42


def test_what_is_installed_wins_over_the_working_folder(working_folder: Path) -> None:
    (working_folder / "orjson.py").write_text("def dumps(x):\n    return None\n")
    assert load_plugin("orjson:dumps")(1) == b"1"


@pytest.mark.parametrize("path", ["no_such_module:x", "orjson:no_such", "orjson", ":x"])
def test_what_cannot_be_loaded_is_said_with_the_place_where_it_was_looked_for(working_folder: Path, path: str) -> None:
    with pytest.raises(UsageError, match=f"{path}.*module:attribute, installed or in {working_folder}"):
        load_plugin(path)


def test_what_cannot_be_called_is_refused(working_folder: Path) -> None:
    with pytest.raises(UsageError, match="__version__' is a str: expected a class or a function"):
        load_plugin("orjson:__version__")
