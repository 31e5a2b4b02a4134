"""From an ended session, as the ledger counts it, to its Trajectory: the token tree that is scored and trained. Pure.

Invariants:
- nodes stand in the order of their requests, so a parent's index is lower than its children's;
- the sequence that a node ends is the first `parent_length` tokens of its parent's sequence and its own tokens: the request's
  sequence in the ledger. Every recorded token stands in exactly one node;
- the mask is 1 for exactly the sampled tokens of requests that ended by `stop` or `length`; prompt tokens have logprob 0.0 and version −1.
"""

from __future__ import annotations

from collections.abc import Callable

from schemas.arrays import WIDTH_BYTES
from schemas.trajectory import Node, Trajectory
from workers.ledger import RequestState, SessionState

__all__ = ["empty_trajectory_of", "trajectory_of"]

GIVEN = -1
"""The version of tokens that no weights sampled."""
TRAINABLE = ("stop", "length")


def trajectory_of(session: SessionState) -> Trajectory:
    """The Trajectory of a session that a Close ended; empty where it had no request.

    :raises ValueError: it has no Close (still open, or ended by a reset: then it gets no Trajectory).
    """
    return _trajectory(session, _nodes)


def empty_trajectory_of(session: SessionState) -> Trajectory:
    """The Trajectory without its tree, never usable: for a session of which no tree can be made.

    :raises ValueError: as `trajectory_of`.
    """
    return _trajectory(session, lambda _: [])


def _trajectory(session: SessionState, nodes: Callable[[SessionState], list[Node]]) -> Trajectory:
    if session.close is None or session.ended_at is None:
        raise ValueError(f"session {session.offset} was not ended by a Close")
    opened, close = session.record, session.close
    return Trajectory(
        session=session.offset, close=session.ended_at, check=opened.check, purpose=opened.purpose, group=opened.group,
        member=opened.member, attempt=opened.attempt, payload=opened.payload, model=opened.model, outcome=close.outcome,
        reward=close.reward, nodes=nodes(session),
    )


def _nodes(session: SessionState) -> list[Node]:
    places = {offset: index for index, offset in enumerate(session.requests)}
    return [_node(request, places) for request in session.requests.values()]


def _node(request: RequestState, places: dict[int, int]) -> Node:
    """A request whose base was wrong has none here: it stands as a failed root with the tokens that it brought."""
    assert request.end is not None, "a Close ends every request of its session"
    record, base = request.record, request.base
    prompt, sampled = len(record.tokens) // WIDTH_BYTES, request.accepted
    return Node(
        request=request.offset,
        parent=-1 if base is None else places[base.offset],
        parent_length=0 if base is None else record.base_length,
        prompt=prompt,
        tokens=record.tokens + bytes(request.tokens),
        mask=bytes(prompt) + (b"\x01" if request.end.why in TRAINABLE else b"\x00") * sampled,
        logprobs=bytes(prompt * WIDTH_BYTES) + bytes(request.logprobs),
        versions=_repeat(GIVEN, prompt) + b"".join(_repeat(part.version, part.size) for part in request.parts),
        sampling=record.sampling,
        end=request.end.why,
    )


def _repeat(value: int, count: int) -> bytes:
    return value.to_bytes(WIDTH_BYTES, "little", signed=True) * count
