"""The tiers of the crash matrix: on which cluster a row's processes run. Where one cannot start (SetupError), its rows are skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from infra.broker.cluster import LocalKafka
from tests.chaos.mock import open_mock, without_checksums
from tests.chaos.proxy import Network, open_network

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


class ProxiedKafka(LocalKafka):
    """A cluster whose clients all come through `network`."""

    def __init__(self, folder: Path, network: Network) -> None:
        super().__init__(folder)
        self.network = network


@contextmanager
def proxied(folder: Path, nodes: int) -> Iterator[LocalKafka]:
    """The same behind proxies."""
    kafka = LocalKafka(folder)
    try:
        kafka.start(nodes, proxied=True)
        state = kafka.state
        assert state is not None
        with open_network([(node.ports.advertised or 0, node.ports.client) for node in state.nodes]) as network:
            yield ProxiedKafka(folder, network)
    finally:
        kafka.stop()


@contextmanager
def mocked(folder: Path) -> Iterator[LocalKafka]:
    """No cluster: rows make their own, of librdkafka's mock broker.

    :raises SetupError: this confluent-kafka hides it.
    """
    with open_mock(), without_checksums():
        yield LocalKafka(folder)


TIERS: dict[str, OpenTier] = {
    "one node": lambda folder: local(folder, 1),
    "three nodes": lambda folder: local(folder, 3),
    "behind a proxy": lambda folder: proxied(folder, 1),
    "mock broker": mocked,
}
"""In the order in which they run."""
