"""When a job is over: the one rule that all engines and the resuming of a request share. Pure."""

from __future__ import annotations

from schemas.session import Sampling
from schemas.span import Finish

__all__ = ["ending"]


def ending(sampling: Sampling, emitted: int, last: int) -> Finish | None:
    """How a request ends after `emitted` sampled tokens, the last of them `last`; None while it goes on.

    A stop token counts before the budget, and only as a sampled token: with `emitted` 0 the prompt's last token stops nothing.
    """
    if emitted and last in sampling.stop_token_ids:
        return "stop"
    return "length" if emitted >= sampling.max_tokens else None
