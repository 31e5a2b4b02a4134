"""Tests that take a whole demo run after all others: what is wrong shows earlier, in a smaller test."""

from __future__ import annotations

import pytest


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those marked `last` go to the end; the others keep their order."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)
