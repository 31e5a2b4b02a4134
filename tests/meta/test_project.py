"""What the project says of itself, compared with what it is."""

from __future__ import annotations

import importlib
import re
from collections import Counter
from pathlib import Path

import pytest

from infra.cli.main import COMMANDS
from infra.cli.roles import ROLES
from schemas import errors
from schemas.errors import SeamlessFlowError
from schemas.topics import TOPICS
from tests.meta import file_map

README = (file_map.ROOT / "README.md").read_text(encoding="utf-8")


def test_the_file_map_is_the_tree() -> None:
    assert file_map.written() == file_map.file_map(), "run: python -m tests.meta.file_map"


@pytest.mark.parametrize("package", file_map.PACKAGES)
def test_packages_are_this_repositorys(package: str) -> None:
    found = importlib.import_module(package).__file__
    assert found is not None
    assert Path(found).parent == file_map.ROOT / package, "another package of this name is in the way"


def test_the_drawing_of_errors_is_the_tree_of_classes() -> None:
    drawn = dict(re.findall(r"([A-Z][A-Za-z]+) +(\d+)   ", errors.__doc__ or ""))
    classes = {name: getattr(errors, name) for name in errors.__all__}
    assert drawn == {name: str(kind.exit_code) for name, kind in classes.items()}
    assert all(issubclass(kind, SeamlessFlowError) for kind in classes.values())
    assert list(errors.__all__) == sorted(errors.__all__)


def test_retriable_errors_are_drawn_as_such() -> None:
    drawn = set(re.findall(r"(\w+) +\d+ .*\(retriable\)", errors.__doc__ or ""))
    assert drawn == {name for name in errors.__all__ if getattr(errors, name).retriable}


def test_every_topic_and_record_is_explained() -> None:
    architecture = (file_map.ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for topic in TOPICS.values():
        assert f"`{topic.name}`" in architecture
        for kind in topic.records:
            assert kind.__name__ in architecture


def test_every_role_and_command_is_in_the_readme() -> None:
    missing = [name for name in [*ROLES, *COMMANDS] if f"`{name}" not in README and f"seamlessflow {name}" not in README]
    assert not missing


def test_the_files_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by these names."""
    names = Counter(file.name for file in (file_map.ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
