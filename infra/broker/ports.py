"""Ports for nodes: free ones on loopback, from a range that no outgoing connection takes."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace

from infra.broker.properties import HOST, NodePorts
from schemas.errors import SetupError

RANGE = range(20_000, 32_000)
"""Below the ephemeral range of Linux and macOS: a node that restarts must find its ports free again."""


def choose_ports(nodes: int, first: int | None = None, *, proxied: bool = False) -> list[NodePorts]:
    """Free ports for each node; `first` asks for the client port of node 1; `proxied` draws one to be advertised, too.

    :raises SetupError: `first` is taken, or no port is free.
    """
    if first is not None and not is_free(first):
        raise SetupError(taken(first))
    shuffled = (port for port in random.sample(RANGE, len(RANGE)) if port != first and is_free(port))
    try:
        drawn = [_draw(shuffled, internal=proxied or nodes > 1, advertised=proxied) for _ in range(nodes)]
    except StopIteration:
        raise SetupError(f"no free port on {HOST} between {RANGE.start} and {RANGE.stop}: end something that listens") from None
    return drawn if first is None else [replace(drawn[0], client=first), *drawn[1:]]


def _draw(free: Iterator[int], *, internal: bool, advertised: bool) -> NodePorts:
    return NodePorts(next(free), next(free), next(free) if internal else None, next(free) if advertised else None)


def require_free(ports: Sequence[int]) -> None:
    """Check that a node may listen on all of them.

    :raises SetupError: one is taken.
    """
    for port in ports:
        if not is_free(port):
            raise SetupError(taken(port))


def is_free(port: int) -> bool:
    """True where a listener can be opened on loopback now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def answers(port: int) -> bool:
    """True where somebody accepts connections on loopback now."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex((HOST, port)) == 0


def taken(port: int) -> str:
    """The line for a port that somebody else listens on."""
    return f"port {port} on {HOST} is taken: end the process that listens there, or choose another one with --port"
