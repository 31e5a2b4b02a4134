"""A branching session worked by hand, token by token, and each way in which a request may end."""

from __future__ import annotations

import pytest

from schemas.arrays import unpack_f4, unpack_i4
from schemas.session import Cancel
from schemas.trajectory import Node
from tests.unit.workers.assembler.session_log import SAMPLING, claim, close, open_, request, session_of, span
from workers.assembler.trajectory import trajectory_of

# The session at offset 1, token by token:
#   request 2: prompt 1 2 | sampled 10 11 (version 0), 12 (version 1), stop
#   request 5: the first 4 tokens of request 2 (1 2 10 11), then prompt 20 | sampled 30 (version 1), stopped by its length
#   request 7: all 5 tokens of request 2, then prompt 21 22 | sampled 40, then cancelled
#   request 10: a base that is none: a failed root
#   request 11: all 6 tokens of request 5 (1 2 10 11 20 30), then prompt 23 | nothing sampled when the session closed
BRANCHES = (
    claim(7),
    open_(group=3, member=1, attempt=2, payload={"word": "hello"}),
    request(1, (1, 2), b"a"),
    span(1, 2, 0, (10, 11), (-0.5, -0.25), 0),
    span(1, 2, 2, (12,), (-1.0,), 1, "stop"),
    request(1, (20,), b"b", base=2, base_length=4),
    span(1, 5, 0, (30,), (-2.0,), 1, "length"),
    request(1, (21, 22), b"c", base=2, base_length=5),
    span(1, 7, 0, (40,), (-4.0,), 1),
    Cancel(session=1, request=7),
    request(1, (50, 51), b"d", base=99, base_length=1),
    request(1, (23,), b"e", base=5, base_length=6),
    close(1, outcome="ok", reward=0.5),
)


def described(node: Node) -> tuple[object, ...]:
    return (
        node.request, node.parent, node.parent_length, node.prompt, unpack_i4(node.tokens), list(node.mask), unpack_f4(node.logprobs),
        unpack_i4(node.versions), node.end,
    )


def test_a_branching_session_by_hand() -> None:
    trajectory = trajectory_of(session_of(*BRANCHES))
    assert [described(node) for node in trajectory.nodes] == [
        (2, -1, 0, 2, [1, 2, 10, 11, 12], [0, 0, 1, 1, 1], [0.0, 0.0, -0.5, -0.25, -1.0], [-1, -1, 0, 0, 1], "stop"),
        (5, 0, 4, 1, [20, 30], [0, 1], [0.0, -2.0], [-1, 1], "length"),
        (7, 0, 5, 2, [21, 22, 40], [0, 0, 0], [0.0, 0.0, -4.0], [-1, -1, 1], "cancelled"),
        (10, -1, 0, 2, [50, 51], [0, 0], [0.0, 0.0], [-1, -1], "failed"),
        (11, 1, 6, 1, [23], [0], [0.0], [-1], "closed"),
    ]
    assert all(node.sampling == SAMPLING for node in trajectory.nodes)


def test_what_stands_at_the_session() -> None:
    trajectory = trajectory_of(session_of(*BRANCHES))
    assert (trajectory.session, trajectory.close, trajectory.check) == (1, 12, "abcdef")
    assert (trajectory.group, trajectory.member, trajectory.attempt, trajectory.purpose) == (3, 1, 2, "train")
    assert (trajectory.payload, trajectory.outcome, trajectory.reward) == ({"word": "hello"}, "ok", 0.5)
    assert not trajectory.is_empty


def test_a_node_and_its_ancestors_give_the_sequence_of_its_request() -> None:
    session = session_of(*BRANCHES)
    nodes = trajectory_of(session).nodes

    def sequence(index: int) -> list[int]:
        node = nodes[index]
        above = sequence(node.parent)[: node.parent_length] if node.parent >= 0 else []
        return above + unpack_i4(node.tokens)

    assert sequence(1) == [1, 2, 10, 11, 20, 30]
    assert sequence(4) == [1, 2, 10, 11, 20, 30, 23]
    rooted = [index for index, state in enumerate(session.requests.values()) if state.is_rooted]
    assert rooted == [0, 1, 2, 4]
    assert all(sequence(index) == unpack_i4(list(session.requests.values())[index].sequence()) for index in rooted)


def test_a_session_without_requests_is_empty() -> None:
    trajectory = trajectory_of(session_of(claim(7), open_(purpose="eval"), close(1)))
    assert (trajectory.nodes, trajectory.is_empty, trajectory.purpose) == ([], True, "eval")


def test_a_failed_request_keeps_its_tokens_and_masks_them() -> None:
    log = (claim(7), open_(), request(1, (1,)), span(1, 2, 0, (9,), (-1.0,), 0), span(1, 2, 1, (), (), 0, "failed"), close(1))
    (node,) = trajectory_of(session_of(*log)).nodes
    assert (unpack_i4(node.tokens), list(node.mask), node.end) == ([1, 9], [0, 0], "failed")


def test_an_open_session_and_one_that_a_reset_ended_have_none() -> None:
    with pytest.raises(ValueError, match="not ended by a Close"):
        trajectory_of(session_of(claim(7), open_()))
    with pytest.raises(ValueError, match="not ended by a Close"):
        trajectory_of(session_of(claim(7), open_(), claim(9, reset=True)))
