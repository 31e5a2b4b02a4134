"""How many partitions each node should have: in proportion to capacity, and as they stand where that is as even. Pure.

Invariants: the shares add up to the number of partitions; each differs by less than one from its exact proportion; shares that stand and
hold this already are answered as they stand.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

__all__ = ["shares_of"]

LEAST_CAPACITY = 1e-6
"""A node that reports none (or nonsense) still serves where it is the only one."""
ROUNDING = 1e-9


def shares_of(partitions: int, capacities: Mapping[str, float], holding: Mapping[str, int]) -> dict[str, int]:
    """Node → number of partitions. Empty where there is no node.

    Each gets its proportion rounded down; of what remains, one more goes first to nodes that hold more than that already (nothing moves),
    then to the greatest remainders.
    """
    weights = {node: _weight(capacity) for node, capacity in capacities.items()}
    total = sum(weights.values())
    exact = {node: partitions * weight / total for node, weight in weights.items()}
    shares = {node: math.floor(value + ROUNDING) for node, value in exact.items()}
    order = sorted(shares, key=lambda node: (holding.get(node, 0) <= shares[node], shares[node] - exact[node], node))
    for node in order[: partitions - sum(shares.values())]:
        shares[node] += 1
    return shares


def _weight(capacity: float) -> float:
    return capacity if LEAST_CAPACITY < capacity < math.inf else LEAST_CAPACITY
