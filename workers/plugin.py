"""Plug-ins by name, `module:attribute`: reward rules, task sets, agents. Foreign code, loaded when its role starts.

Invariant: whatever foreign code raises, SystemExit and a cancellation of its own making too, is a PluginFailed for its caller; only the
cancellation of the caller's own task passes.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from schemas.errors import UsageError

__all__ = ["PluginFailed", "ask", "load_plugin", "said", "storable"]

T = TypeVar("T")

MOST_SAID = 2_000
"""Characters of an error that are kept."""


class PluginFailed(Exception):
    """Foreign code gave no answer. `str()` says why, as text that can be stored."""


async def ask(call: Callable[[], Awaitable[T]], limit_s: float) -> T:
    """What `call` answers: foreign code, and the check of its answer.

    :raises PluginFailed: it raised, or did not answer within `limit_s`.
    """
    try:
        with anyio.move_on_after(limit_s):
            return await call()
    except anyio.get_cancelled_exc_class() as error:
        if anyio.current_effective_deadline() == -math.inf:
            raise
        raise PluginFailed(said(error)) from error
    except (Exception, BaseExceptionGroup, SystemExit, KeyboardInterrupt) as error:  # a signal's KeyboardInterrupt never comes this way
        raise PluginFailed(said(error)) from error
    raise PluginFailed(f"TimeoutError: no answer within {limit_s:g} s")


def said(error: BaseException) -> str:
    """The kind of an error and what it says, cut to MOST_SAID characters."""
    try:
        return storable(f"{type(error).__name__}: {error}"[:MOST_SAID])
    except Exception:  # foreign code, too
        return f"{type(error).__name__}: it cannot be printed"


def storable(text: str) -> str:
    """Text as a record can hold it: half characters, which no encoding knows, are replaced."""
    return text.encode(errors="replace").decode()


def load_plugin(path: str) -> Callable[..., Any]:
    """The class or function that `path` names. Modules of the working folder are found, too: that is where people write their own.

    :raises UsageError: there is no such module or attribute, or it cannot be called.
    """
    module, _, attribute = path.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:  # a console script has its own folder there; at the end, so that nothing installed is hidden
        sys.path.append(folder)
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UsageError(f"plug-in {path!r} cannot be loaded: {error}; expected module:attribute, installed or in {folder}") from error
    if not callable(found):
        raise UsageError(f"plug-in {path!r} is a {type(found).__name__}: expected a class or a function")
    return found  # type: ignore[no-any-return]
