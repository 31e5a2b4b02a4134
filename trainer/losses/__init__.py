"""What a gradient step minimises, per token. One file per algorithm; `LOSSES` is the registry.

A plug-in is a subclass of `Loss` whose fields are its settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from schemas.errors import UsageError
from trainer.losses.base import Loss, TokenLoss, Tokens
from trainer.losses.clipped import Clipped
from trainer.losses.reinforce import Reinforce

__all__ = ["LOSSES", "Clipped", "Loss", "Reinforce", "TokenLoss", "Tokens", "make_loss"]

LOSSES: dict[str, type[Loss]] = {"clipped": Clipped, "reinforce": Reinforce}


def make_loss(name: str, settings: Mapping[str, Any] | None = None) -> Loss:
    """The algorithm of that name with its settings checked.

    :raises UsageError: the name is not registered, or a setting is unknown or out of range.
    """
    if name not in LOSSES:
        raise UsageError(f"loss {name!r} is unknown: use one of {', '.join(sorted(LOSSES))}")
    try:
        return LOSSES[name](**(settings or {}))
    except ValidationError as error:
        raise UsageError(f"settings of loss {name!r}: {error}") from error
