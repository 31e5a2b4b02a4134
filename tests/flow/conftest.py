"""What flow tests share: the processes that a module keeps standing, and their log.

Whole demo runs go last: a smaller test fails earlier.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.flow.harness import Pipeline
from tests.flow.seen import Seen, watching


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those marked `last` go to the end; the others keep their order."""
    items.sort(key=lambda item: item.get_closest_marker("last") is not None)


@pytest.fixture
async def pipeline(standing: Pipeline) -> Pipeline:
    """The module's own `standing` processes, all of them at work again."""
    await standing.come_home()
    return standing


@pytest.fixture
async def seen(pipeline: Pipeline) -> AsyncIterator[Seen]:
    """Their log, read on while the test runs."""
    async with watching(pipeline.log()) as seen:
        yield seen
