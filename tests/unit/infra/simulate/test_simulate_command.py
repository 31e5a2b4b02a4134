"""Workload files and their errors, intervals against a table, and the command from end to end on a small file."""

from __future__ import annotations

import statistics
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import orjson
import pytest

from infra.cli.main import execute
from infra.simulate.figures import FIGURES, interval, student
from infra.simulate.node import Stretch
from infra.simulate.picture import Panel, picture
from infra.simulate.policies import policy
from infra.simulate.sessions import draw, draw_group
from infra.simulate.workload import SCENARIOS, Lengths, load_workload
from schemas.errors import UsageError
from tests.unit.infra.simulate.small import workload

SMALL = """
[comparison]
policies = ["colocated_sync", "tags"]
steps = 2
warm_up = 1
[cluster]
nodes = 2
partitions = 4
[session]
members = 2
groups_per_step = 2
output_tokens = { median = 100, p99_ratio = 2 }
[engine]
iteration_s = 0.01
request_s = 0.005
prefill_tokens_per_s = 1000
[training]
step_s = 10
train_nodes = 1
sync_s = 0
"""


@pytest.mark.parametrize("name", sorted(path.stem for path in SCENARIOS.glob("*.toml")))
def test_every_scenario_loads_and_names_policies_that_there_are(name: str) -> None:
    found = load_workload(name)
    assert {policy(each, found).name for each in found.policies} >= {"colocated_sync", "async_partial", "tags_ungated", "tags"}
    assert found.cluster.nodes == 32


def test_what_is_wrong_with_a_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    for text, said in (
        (SMALL.replace("members = 2", "members = 0"), "session.members: Input should be greater than or equal to 1"),
        (SMALL.replace("nodes = 2", "nodes = 2\nnode = 3"), "cluster.node: Extra inputs are not permitted"),
        (SMALL + "share = 0.2\n", "training: Value error, give one of step_s and share"),
        (SMALL.replace("[engine]", "[engines]"), "engine: Field required"),
    ):
        file.write_text(text)
        with pytest.raises(UsageError) as caught:
            load_workload(str(file))
        assert said in str(caught.value)
    with pytest.raises(UsageError, match="there is no scenario 'nowhere': name one of agentic, heterogeneous, single_turn, spot, swe"):
        load_workload("nowhere")


def test_policies_that_there_are_not() -> None:
    wrong = (("fifo", "there is no policy 'fifo'"), ("static_2", "2 of 2 nodes cannot train"), ("async_0", "0 of 2 nodes cannot train"))
    for name, said in wrong:
        with pytest.raises(UsageError, match=said):
            policy(name, workload())
    assert (policy("static", workload()).train_nodes, policy("async_partial_1", workload()).ahead) == (1, 2)


def test_lengths_have_the_median_and_the_tail_that_they_are_given() -> None:
    chance = Random(7)
    lengths = sorted(draw(Lengths(median=4000, p99_ratio=10), chance) for _ in range(40_000))
    assert statistics.median(lengths) == pytest.approx(4000, rel=0.03)
    assert lengths[int(0.99 * len(lengths))] == pytest.approx(40_000, rel=0.06)


def test_a_group_depends_on_its_seed_and_number_alone() -> None:
    part = load_workload("agentic").session
    groups = [draw_group(part, seed, number, 0.0) for seed, number in ((1, 5), (1, 5), (2, 5), (1, 6))]
    drawn = [[session.outputs for session in group.sessions] for group in groups]
    assert drawn[0] == drawn[1]
    assert drawn[0] not in drawn[2:]
    assert {len(outputs) for outputs in drawn[0]} <= {3, 12}


def test_student_against_the_table() -> None:
    for freedom, quantile in ((6, 2.447), (10, 2.228), (29, 2.045), (100, 1.984)):
        assert student(freedom) == pytest.approx(quantile, abs=2e-3)


def test_an_interval_by_hand() -> None:
    found = interval([8.0, 9.0, 10.0, 11.0, 12.0, 9.0, 11.0])  # variance 2, 2.447 * sqrt(2 / 7)
    assert found.mean == 10.0
    assert found.high - found.mean == pytest.approx(2.447 * (2 / 7) ** 0.5, abs=2e-3)
    assert interval([3.0]) == (3.0, 3.0, 3.0)


def test_a_picture_has_a_bar_for_each_stretch_within_its_time() -> None:
    nodes = {"a": [Stretch(0.0, 5.0, "rollout"), Stretch(5.0, 20.0, "train")], "b": [Stretch(12.0, 15.0, "gone")]}
    drawn = ElementTree.fromstring(picture("a < b", [Panel("tags", nodes, [5.0, 20.0])], 0.0, 10.0))
    bars = [each for each in drawn.iter("{http://www.w3.org/2000/svg}rect") if each.get("height") == "5"]
    assert [(each.get("fill"), float(each.get("width") or 0)) for each in bars] == [("#4c9f70", 530.0), ("#3b6fb6", 530.0)]
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}path"))) == 1


def test_the_command_writes_figures_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figures, drawn = tmp_path / "mine.toml", tmp_path / "figures.json", tmp_path / "picture.svg"
    file.write_text(SMALL)
    assert execute(["simulate", str(file), "--seeds", "2", "--nodes", "4", "--json", str(figures), "--svg", str(drawn)]) == 0
    found = orjson.loads(figures.read_bytes())
    assert found["workload"]["cluster"]["nodes"] == 4
    assert found["workload"]["session"]["groups_per_step"] == 4
    assert set(found["policies"]) == {"colocated_sync", "tags"}
    assert all(set(policy) == set(FIGURES) for policy in found["policies"].values())
    assert set(found["policies"]["tags"]["bubble"]) == {"mean", "low", "high"}
    assert ElementTree.fromstring(drawn.read_bytes()).tag.endswith("svg")
    assert "4 nodes, 8 partitions, 4 groups of 2 a step" in capsys.readouterr().out


def test_help_has_the_formulas(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["simulate", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert all(f"{name} =" in said or f"{name}, " in said for name in FIGURES)
