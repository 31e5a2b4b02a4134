"""The crew of `up`: what the settings file says is never overruled, and what it leaves open fits together."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.crew.pipeline import UpSettings, agents, services
from schemas.errors import UsageError


def settings_of(file: Path, text: str, **up: object) -> dict[str, dict[str, object]]:
    """Member → the settings that it is started with."""
    file.write_text(text)
    return {spec.name: dict(spec.settings) for spec in services(UpSettings(**up), Path("run"), file)}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "flow.toml"


def test_without_a_file_everything_is_filled_in(file: Path) -> None:
    found = settings_of(file, "")
    assert list(found) == ["gateway", "assembler", "reward", "source", "scheduler", "rollout-0", "trainer"]
    model = Path("run/model")
    assert [found[name]["model_dir"] for name in ("gateway", "reward", "rollout-0", "trainer")] == [model] * 4
    assert found["trainer"]["feed"] == {"groups_per_step": 4, "rules": {"next_letter": 1.0}}
    assert found["trainer"]["steps"] == 200
    assert found["source"] == {}


def test_the_trainer_follows_the_source(file: Path) -> None:
    trainer = settings_of(file, "[source]\ngroups_per_step = 7\nsteps = 11\n")["trainer"]
    assert trainer["feed"] == {"groups_per_step": 7, "rules": {"next_letter": 1.0}}
    assert trainer["steps"] == 11


def test_what_the_file_says_is_left_to_the_file(file: Path) -> None:
    text = '[trainer]\nsteps = 3\nmodel_dir = "other"\n[trainer.feed]\ngroups_per_step = 2\n[gateway]\nport = 8000\n'
    found = settings_of(file, text)
    assert set(found["trainer"]) == {"weights_dir", "checkpoint_dir"}
    assert "port" not in found["gateway"]


def test_what_the_environment_says_is_left_to_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEAMLESSFLOW_AGENTS_GATEWAY_URL", "http://elsewhere:1")
    file.write_text("")
    assert dict(agents("http://here:2", file).settings) == {}


def test_workers_have_names_of_their_own(file: Path) -> None:
    found = settings_of(file, "[rollout]\nbatch = 8\n", rollouts=3, trainer=False, model_dir=Path("m"))
    workers = {name: settings for name, settings in found.items() if name.startswith("rollout")}
    shared = {"model_dir": Path("m"), "snapshots": "run/snapshots"}
    assert workers == {f"rollout-{number}": {**shared, "node": f"rollout-{number}"} for number in range(3)}
    assert "trainer" not in found


def test_a_wrong_table_of_a_role_is_found_before_anything_starts(file: Path) -> None:
    with pytest.raises(UsageError, match="unknown key bach; there are"):
        settings_of(file, "[rollout]\nbach = 8\n")
