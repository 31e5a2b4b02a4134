"""Plans to tensors, worked by hand."""

from __future__ import annotations

import msgspec
import pytest

from schemas.errors import CorruptRecord
from schemas.training import Plan, Row
from tests.unit.trainer.trees import node, place, trajectory
from trainer.batch import micro_batches
from trainer.layout import LayoutSettings, lay_out
from trainer.paths import paths_of

pytestmark = pytest.mark.torch

# 1 2 | 3 4 5        sampled at temperature 1 under versions 4 4 5
#       3 | 6 | 7    branch in mid-node, temperature 0.5, version 6
BRANCHED = trajectory(
    node([1, 2], [3, 4, 5], logprobs=[-0.5, -0.25, -0.125], versions=[4, 4, 5]),
    node([6], [7], parent=0, parent_length=3, logprobs=[-2.0], versions=[6], temperature=0.5),
    session=3,
)


def branched_plan() -> Plan:
    rows = [path.row(0, advantage) for path, advantage in zip(paths_of(BRANCHED), [2.0, -1.0], strict=True)]
    return lay_out([place(3)], rows, LayoutSettings())


def test_a_branched_trajectory_packs_as_worked_by_hand() -> None:
    [batch] = micro_batches(branched_plan(), [BRANCHED])
    assert batch.tokens.tolist() == [[1, 2, 3, 4, 1, 2, 3, 6]]
    assert batch.positions.tolist() == [[0, 1, 2, 3, 0, 1, 2, 3]]
    assert batch.lengths == [4, 4]
    assert batch.targets.tolist() == [3, 4, 5, 7]
    assert batch.predictors.tolist() == [1, 2, 3, 7]
    assert batch.behaviour.tolist() == [-0.5, -0.25, -0.125, -2.0]
    assert batch.temperature.tolist() == [1.0, 1.0, 1.0, 0.5]
    assert batch.advantage.tolist() == [2.0, 2.0, 2.0, -1.0]
    assert batch.version.tolist() == [4, 4, 5, 6]
    assert batch.trained == 4


def test_micro_batches_come_in_the_order_of_the_plan() -> None:
    plan = msgspec.structs.replace(branched_plan(), micro_batches=[[1], [0]], mini_batches=[[0, 1]])
    second, first = micro_batches(plan, [BRANCHED])
    assert second.tokens.tolist() == [[1, 2, 3, 6]]
    assert first.targets.tolist() == [3, 4, 5]


def test_r11_a_greedy_token_is_refused_though_its_mask_says_that_it_may_be_trained() -> None:
    """No distribution was sampled, so no ratio of probabilities exists for it."""
    greedy = msgspec.structs.replace(BRANCHED, nodes=[node([1, 2], [3, 4, 5], temperature=0.0), *BRANCHED.nodes[1:]])
    with pytest.raises(CorruptRecord, match="not sampled from a distribution"):
        micro_batches(branched_plan(), [greedy])


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(place=0, nodes=[0], stops=[6], train_from=[2], train_to=[5], advantage=1.0), "beyond a node's end"),
        (Row(place=0, nodes=[0], stops=[5], train_from=[2], train_to=[6], advantage=1.0), "outside of 1"),
        (Row(place=0, nodes=[0], stops=[5], train_from=[1], train_to=[5], advantage=1.0), "was not sampled"),
    ],
)
def test_a_row_that_does_not_fit_is_refused(row: Row, message: str) -> None:
    plan = Plan(places=[place(3)], rows=[row], micro_batches=[[0]], mini_batches=[[0]])
    with pytest.raises(CorruptRecord, match=message):
        micro_batches(plan, [BRANCHED])


def test_another_session_than_planned_is_refused() -> None:
    plan = msgspec.structs.replace(branched_plan(), places=[place(4)])
    with pytest.raises(CorruptRecord, match="of session 3, not 4"):
        micro_batches(plan, [BRANCHED])
