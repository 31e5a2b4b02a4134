"""How rows are cut into a plan."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.training import Row
from tests.unit.trainer.trees import place
from trainer.layout import LayoutSettings, lay_out


def row(length: int) -> Row:
    return Row(place=0, nodes=[0], stops=[length], train_from=[1], train_to=[length], advantage=1.0)


def test_rows_are_ordered_by_length_and_cut_at_the_token_limit() -> None:
    plan = lay_out([place()], [row(5), row(3), row(9), row(3)], LayoutSettings(micro_batch_tokens=8, epochs=3))
    assert plan.micro_batches == [[1, 3], [0], [2]]
    assert plan.mini_batches == [[0, 1, 2]]
    assert plan.epochs == 3


def test_fewer_rows_than_mini_batches_make_fewer_updates() -> None:
    plan = lay_out([place()], [row(3), row(4)], LayoutSettings(mini_batches=8))
    assert sorted(plan.micro_batches) == [[0], [1]]
    assert plan.mini_batches == [[0], [1]]


def test_no_rows_is_an_error() -> None:
    with pytest.raises(ValueError, match="without rows"):
        lay_out([], [], LayoutSettings())


@given(st.lists(st.integers(2, 30), min_size=1, max_size=40), st.integers(1, 5), st.integers(1, 60), st.integers(0, 9))
def test_each_row_once(lengths: list[int], mini_batches: int, tokens: int, seed: int) -> None:
    rows = [row(length) for length in lengths]
    plan = lay_out([place()], rows, LayoutSettings(mini_batches=mini_batches, micro_batch_tokens=tokens), seed=seed)
    assert sorted(chain.from_iterable(plan.micro_batches)) == list(range(len(rows)))
    assert list(chain.from_iterable(plan.mini_batches)) == list(range(len(plan.micro_batches)))
    assert all(len(cut) == 1 or sum(lengths[index] for index in cut) <= tokens for cut in plan.micro_batches)
    assert plan == lay_out([place()], rows, LayoutSettings(mini_batches=mini_batches, micro_batch_tokens=tokens), seed=seed)
