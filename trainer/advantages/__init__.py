"""How good a session was, compared with others of its task. One file per algorithm; `ADVANTAGES` is the registry.

A plug-in is a subclass of `Advantage` whose fields are its settings; its values go into the rows of a Plan, so replay never needs it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from schemas.errors import UsageError
from trainer.advantages.base import Advantage
from trainer.advantages.baseline import Baseline
from trainer.advantages.grpo import Grpo

__all__ = ["ADVANTAGES", "Advantage", "Baseline", "Grpo", "make_advantage"]

ADVANTAGES: dict[str, type[Advantage]] = {"grpo": Grpo, "baseline": Baseline}


def make_advantage(name: str, settings: Mapping[str, Any] | None = None) -> Advantage:
    """The algorithm of that name with its settings checked.

    :raises UsageError: the name is not registered, or a setting is unknown or out of range.
    """
    if name not in ADVANTAGES:
        raise UsageError(f"advantage {name!r} is unknown: use one of {', '.join(sorted(ADVANTAGES))}")
    try:
        return ADVANTAGES[name](**(settings or {}))
    except ValidationError as error:
        raise UsageError(f"settings of advantage {name!r}: {error}") from error
