"""The tiers of the crash matrix: on which cluster a row's processes run. Where one cannot start (SetupError), its rows are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from infra.broker.cluster import LocalKafka

OpenTier = Callable[[Path], AbstractContextManager[LocalKafka]]


@contextmanager
def local(folder: Path, nodes: int) -> Iterator[LocalKafka]:
    """A cluster of the tier's own, for as long as its rows run."""
    kafka = LocalKafka(folder)
    try:
        kafka.start(nodes)
        yield kafka
    finally:
        kafka.stop()


TIERS: dict[str, OpenTier] = {
    "one node": lambda folder: local(folder, 1),
    "three nodes": lambda folder: local(folder, 3),
}
"""In the order in which they run."""
