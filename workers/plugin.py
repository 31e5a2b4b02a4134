"""Plug-ins by name, `module:attribute`: reward rules, task sets, agents. Foreign code, loaded when its role starts."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from schemas.errors import UsageError

__all__ = ["load_plugin"]


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
