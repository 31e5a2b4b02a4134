"""librdkafka's mock broker: a Kafka of this process's own, without a disk, that answers with whatever error code it is told to.

It is part of the confluent-kafka wheel, and reached by ctypes: Python's client does not show it. It knows no admin requests; what was sent
in a transaction is visible at once, whatever becomes of it; its transaction markers have no checksum, so that readers must not look at
any; and it appends nothing that it answers with an error.

Invariant: a code is answered exactly once, to the next request of its API; `answered` counts the requests that came since.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from unittest.mock import patch

import confluent_kafka.cimpl

from schemas.errors import SetupError
from streams.kafka import KafkaBroker, reader

DEADLINE_S = 20.0
_PRODUCER = 0


class Api(IntEnum):
    """The keys of Kafka's requests."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26


class MockCluster:
    """Made by `open_mock`."""

    def __init__(self, library: ctypes.CDLL, cluster: int) -> None:
        self._library, self._cluster = library, cluster

    @property
    def bootstrap(self) -> str:
        """The address for clients."""
        return str(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def create_topic(self, name: str, partitions: int = 1) -> None:
        """Make a topic."""
        self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)

    def answer(self, api: Api, codes: Sequence[int]) -> None:
        """Answer the next requests of an API with these codes, and count its requests from now on."""
        self._library.rd_kafka_mock_clear_requests(self._cluster)
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._cluster, int(api), len(codes), array)

    def answered(self, api: Api) -> int:
        """How many requests of an API came since `answer`."""
        count = ctypes.c_size_t()
        requests = self._library.rd_kafka_mock_get_requests(self._cluster, ctypes.byref(count))
        keys = [self._library.rd_kafka_mock_request_api_key(requests[index]) for index in range(count.value)]
        self._library.rd_kafka_mock_request_destroy_array(requests, count)
        return keys.count(int(api))


class MockedBroker(KafkaBroker):
    """The real client at a mock cluster, which cannot be asked for the partitions of a topic: each has one."""

    def __init__(self, bootstrap: str, *, client_id: str = "mocked", deadline_s: float = DEADLINE_S) -> None:
        super().__init__(bootstrap, client_id=client_id, deadline_s=deadline_s)

    async def partitions(self, topic: str) -> int:
        """One."""
        return 1


@contextmanager
def open_mock(brokers: int = 1) -> Iterator[MockCluster]:
    """A cluster for the length of a context.

    :raises SetupError: this confluent-kafka hides the mock broker.
    """
    library = _library()
    error = ctypes.create_string_buffer(512)
    settings = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(settings, b"log_level", b"2", error, len(error))  # else it warns that it is to connect to nobody
    client = library.rd_kafka_new(_PRODUCER, settings, error, len(error))
    if not client:
        raise SetupError(f"librdkafka starts no client: {error.value.decode()}")
    cluster = library.rd_kafka_mock_cluster_new(client, brokers)
    try:
        library.rd_kafka_mock_start_request_tracking(cluster)
        yield MockCluster(library, cluster)
    finally:
        library.rd_kafka_mock_cluster_destroy(cluster)
        library.rd_kafka_destroy(client)


@contextmanager
def without_checksums() -> Iterator[None]:
    """Log readers of this process look at no checksum."""
    settings = reader.consumer_settings
    with patch.object(reader, "consumer_settings", lambda *of, **how: {**settings(*of, **how), "check_crcs": False}):
        yield


def _library() -> ctypes.CDLL:
    """librdkafka with the types of what is called here."""
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    handle, text, count, requests = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)
    signatures: dict[str, tuple[object, list[object]]] = {
        "rd_kafka_conf_new": (handle, []),
        "rd_kafka_conf_set": (ctypes.c_int, [handle, text, text, text, count]),
        "rd_kafka_new": (handle, [ctypes.c_int, handle, text, count]),
        "rd_kafka_destroy": (None, [handle]),
        "rd_kafka_mock_cluster_new": (handle, [handle, ctypes.c_int]),
        "rd_kafka_mock_cluster_destroy": (None, [handle]),
        "rd_kafka_mock_cluster_bootstraps": (text, [handle]),
        "rd_kafka_mock_topic_create": (ctypes.c_int, [handle, text, ctypes.c_int, ctypes.c_int]),
        "rd_kafka_mock_push_request_errors_array": (None, [handle, ctypes.c_int16, count, ctypes.POINTER(ctypes.c_int)]),
        "rd_kafka_mock_start_request_tracking": (None, [handle]),
        "rd_kafka_mock_clear_requests": (None, [handle]),
        "rd_kafka_mock_get_requests": (requests, [handle, ctypes.POINTER(count)]),
        "rd_kafka_mock_request_api_key": (ctypes.c_int16, [handle]),
        "rd_kafka_mock_request_destroy_array": (None, [requests, count]),
    }
    for name, (result, arguments) in signatures.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise SetupError(f"this confluent-kafka has no mock broker: {name} is missing") from None
        function.restype, function.argtypes = result, arguments
    return library
