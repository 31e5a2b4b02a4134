"""Trajectories and plans by hand, short to write."""

from __future__ import annotations

from schemas.arrays import pack_f4, pack_i4
from schemas.session import Sampling
from schemas.training import Place
from schemas.trajectory import Node, NodeEnd, Trajectory


def node(
    prompt: list[int],
    sampled: list[int],
    *,
    parent: int = -1,
    parent_length: int = 0,
    logprobs: list[float] | None = None,
    versions: list[int] | None = None,
    temperature: float = 1.0,
    end: NodeEnd = "stop",
) -> Node:
    """A request with its prompt part and what was sampled; everything sampled is trainable if it ended well."""
    given, drawn = len(prompt), len(sampled)
    usable = 1 if end in ("stop", "length") else 0
    return Node(
        request=0,
        parent=parent,
        parent_length=parent_length,
        prompt=given,
        tokens=pack_i4(prompt + sampled),
        mask=bytes([0] * given + [usable] * drawn),
        logprobs=pack_f4([0.0] * given + (logprobs or [-1.0] * drawn)),
        versions=pack_i4([-1] * given + (versions or [0] * drawn)),
        sampling=Sampling(max_tokens=16, temperature=temperature),
        end=end,
    )


def trajectory(*nodes: Node, session: int = 0) -> Trajectory:
    return Trajectory(session=session, close=session + 1, nodes=list(nodes))


def place(session: int = 0) -> Place:
    return Place(partition=0, offset=session, session=session)
