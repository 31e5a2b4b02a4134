"""Where payloads come from: the plug-in behind the source.

    def tasks(seed: int) -> TaskSet: …

Invariant: a payload is a function of the seed and its index, so that a restarted source goes on with the same tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

Payload = dict[str, Any]
"""The environment's own data, as JSON would hold it."""


class TaskSet(Protocol):
    """Training payloads without an end, and a fixed list of payloads for evaluation."""

    def train(self, index: int) -> Payload:
        """The payload of training group `index` (0, 1, 2, …)."""
        ...

    def evaluation(self) -> Sequence[Payload]:
        """The held-out payloads, the same each time."""
        ...
