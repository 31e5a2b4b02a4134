"""The linearisation of token trees, against cases worked by hand and a naive count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import unpack_i4
from schemas.trajectory import Node, NodeEnd, Trajectory
from tests.unit.trainer.trees import node, trajectory
from trainer.paths import Path, paths_of


def test_one_request_is_one_path() -> None:
    [path] = paths_of(trajectory(node([1, 2, 3], [4, 5])))
    assert path == Path(nodes=[0], stops=[5], train_from=[3], train_to=[5], length=5, trained=2, lowest_version=0)


def test_a_second_turn_extends_the_first_into_one_path() -> None:
    tree = trajectory(node([1, 2], [3, 4]), node([5, 6], [7], parent=0, parent_length=4, versions=[3]))
    [path] = paths_of(tree)
    assert path == Path(nodes=[0, 1], stops=[4, 3], train_from=[2, 6], train_to=[4, 7], length=7, trained=3, lowest_version=0)


def test_a_branch_in_mid_node_trains_shared_tokens_in_the_first_path_only() -> None:
    # 1 2 | 3 4 5      node 0: prompt 1 2, sampled 3 4 5
    #       3 | 6 | 7  node 1 keeps the sampled 3, is given 6, samples 7
    tree = trajectory(node([1, 2], [3, 4, 5]), node([6], [7], parent=0, parent_length=3))
    first, second = paths_of(tree)
    assert first == Path(nodes=[0], stops=[5], train_from=[2], train_to=[5], length=5, trained=3, lowest_version=0)
    assert second == Path(nodes=[0, 1], stops=[3, 2], train_from=[4], train_to=[5], length=5, trained=1, lowest_version=0)


def test_the_first_of_two_children_trains_the_shared_prefix() -> None:
    # Node 0 is wholly inside both children's sequences: it needs no path of its own.
    tree = trajectory(
        node([1], [2, 3]),
        node([4], [5], parent=0, parent_length=3),
        node([6], [7], parent=0, parent_length=3),
    )
    first, second = paths_of(tree)
    assert (first.nodes, first.train_from, first.train_to) == ([0, 1], [1, 4], [3, 5])
    assert (second.nodes, second.train_from, second.train_to) == ([0, 2], [4], [5])


def test_a_branch_before_its_parents_own_tokens_takes_none_of_them() -> None:
    tree = trajectory(
        node([1, 2], [3]),
        node([4], [5], parent=0, parent_length=3),
        node([9], [8], parent=1, parent_length=2),
    )
    paths = paths_of(tree)
    assert [path.nodes for path in paths] == [[0, 1], [0, 2]]
    assert paths[1].stops == [2, 2]


def test_tokens_after_the_last_trained_one_are_left_out() -> None:
    tree = trajectory(node([1], [2, 3]), node([4, 5], [6], parent=0, parent_length=3, end="cancelled"))
    [path] = paths_of(tree)
    assert (path.nodes, path.stops) == ([0], [3])


def test_context_of_a_failed_request_is_kept_untrained() -> None:
    tree = trajectory(node([1], [2, 3], end="failed"), node([4], [5], parent=0, parent_length=3))
    [path] = paths_of(tree)
    assert (path.nodes, path.stops, path.train_from, path.train_to) == ([0, 1], [3, 2], [4], [5])


@pytest.mark.parametrize("tree", [trajectory(), trajectory(node([1], [])), trajectory(node([1], [2], temperature=0.0))])
def test_nothing_to_train_gives_no_path(tree: Trajectory) -> None:
    assert paths_of(tree) == []


def test_the_first_token_of_a_sequence_has_nothing_that_predicts_it() -> None:
    [path] = paths_of(trajectory(node([], [1, 2])))
    assert (path.train_from, path.train_to) == ([1], [2])


def test_old_tokens_become_context() -> None:
    [path] = paths_of(trajectory(node([1], [2, 3, 4], versions=[4, 5, 5])), oldest=5)
    assert (path.train_from, path.train_to, path.lowest_version) == ([2], [4], 5)


def test_a_node_beyond_its_parents_end_is_refused() -> None:
    with pytest.raises(ValueError, match="node 1 begins at 4, its parent ends at 3"):
        paths_of(trajectory(node([1], [2, 3]), node([], [5], parent=0, parent_length=4)))


def test_a_parent_that_comes_later_is_refused() -> None:
    with pytest.raises(ValueError, match="does not precede"):
        paths_of(trajectory(node([1], [2], parent=0)))


@st.composite
def trees(draw: st.DrawFn) -> Trajectory:
    """Every token of a tree has an id of its own, so that a sequence says where its tokens come from."""
    nodes: list[Node] = []
    ends: list[int] = []
    ways: list[NodeEnd] = ["stop", "length", "failed"]
    fresh = iter(range(10_000))
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.integers(-1, index - 1))
        start = draw(st.integers(0, ends[parent])) if parent >= 0 else 0
        prompt = [next(fresh) for _ in range(draw(st.integers(0 if start else 1, 3)))]
        sampled = [next(fresh) for _ in range(draw(st.integers(0, 4)))]
        versions = [draw(st.integers(0, 2)) for _ in sampled]
        end = draw(st.sampled_from(ways))
        nodes.append(node(prompt, sampled, parent=parent, parent_length=start, versions=versions, end=end))
        ends.append(start + len(prompt) + len(sampled))
    return trajectory(*nodes)


def whole(tree: Trajectory, index: int) -> list[int]:
    """The whole sequence of a node, by the definition in `schemas.trajectory`."""
    own = unpack_i4(tree.nodes[index].tokens)
    parent = tree.nodes[index].parent
    return own if parent < 0 else whole(tree, parent)[: tree.nodes[index].parent_length] + own


@given(trees(), st.integers(0, 2))
def test_every_trainable_token_once_in_its_own_context(tree: Trajectory, oldest: int) -> None:
    trained: list[int] = []
    for path in paths_of(tree, oldest=oldest):
        parts = [unpack_i4(tree.nodes[index].tokens)[:stop] for index, stop in zip(path.nodes, path.stops, strict=True)]
        sequence = [token for part in parts for token in part]
        assert sequence == whole(tree, path.nodes[-1])[: path.length]
        places = [place for ends in zip(path.train_from, path.train_to, strict=True) for place in range(*ends)]
        assert path.trained == len(places)
        assert places[-1] == path.length - 1
        trained += [sequence[place] for place in places]
    expected = [
        token
        for each in tree.nodes
        for token, mask, version in zip(unpack_i4(each.tokens), each.mask, unpack_i4(each.versions), strict=True)
        if mask == 1 and version >= oldest and not (each.parent_length == 0 and token == unpack_i4(each.tokens)[0])
    ]
    assert sorted(trained) == sorted(expected)
