"""The contract of an advantage: the rewards of one group in, one number per session out. Deterministic, without state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

__all__ = ["Advantage"]


class Advantage(BaseModel, ABC):
    """An algorithm; its fields are its settings. Unknown settings are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @abstractmethod
    def __call__(self, rewards: Sequence[float]) -> list[float]:
        """One advantage per reward, in their order. All zeros means that the group has no signal and is to be dropped."""
