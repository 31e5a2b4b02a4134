"""Records to bytes and back: one msgpack map a record, its type and schema in the headers.

Invariants: `decode(encode(record)) == record`; bytes that are no record are CorruptRecord; a type or major that this software does not
know is UnknownRecord, decided by the headers alone, so that newer records are never half understood (R4).
"""

from __future__ import annotations

from functools import cache, lru_cache
from typing import Generic, TypeVar

import msgspec

from schemas.errors import CorruptRecord, UnknownRecord
from schemas.record import Record
from schemas.topics import Topic
from streams.blobs import BLOB_HEADER
from streams.broker import Headers, Message, Outgoing

R_co = TypeVar("R_co", bound=Record, covariant=True)

_encoder = msgspec.msgpack.Encoder()


class Entry(msgspec.Struct, Generic[R_co], frozen=True):
    """A record and where it stands. `nonce` is set on records written by cas. One is made per record read: see `streams.broker.Message`."""

    partition: int
    offset: int
    timestamp_ms: int
    record: R_co
    nonce: bytes | None = None


def encode(topic: str, partition: int, record: Record, *, nonce: bytes | None = None) -> Outgoing:
    """A record as a message for `topic` (full name)."""
    headers = _headers(type(record))
    if nonce is not None:
        headers = (*headers, ("nonce", nonce))
    return Outgoing(topic, partition, record.key(), _encoder.encode(record), headers)


def decode(topic: Topic, message: Message) -> Entry[Record]:
    """The record in a message of `topic`.

    :raises CorruptRecord: the bytes are no record of the type that the headers name.
    :raises UnknownRecord: the headers name a type that `topic` does not hold, or another major.
    """
    headers = dict(message.headers)
    if BLOB_HEADER in headers:
        raise CorruptRecord(f"{_where(message)}: its payload is in the blob store and was not fetched")
    decoder = _decoder(topic, headers.get("type", b""), headers.get("schema", b""))
    try:
        record = decoder.decode(message.value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(f"{_where(message)}: {error}") from error
    return Entry(message.partition, message.offset, message.timestamp_ms, record, headers.get("nonce"))


@cache
def _headers(kind: type[Record]) -> Headers:
    return (("type", kind.type_name().encode()), ("schema", kind.schema().encode()))


@cache
def _decoders(topic: Topic) -> dict[bytes, tuple[int, msgspec.msgpack.Decoder[Record]]]:
    return {kind.type_name().encode(): (kind.MAJOR, msgspec.msgpack.Decoder(kind)) for kind in topic.records}


@lru_cache(maxsize=1024)
def _decoder(topic: Topic, name: bytes, schema: bytes) -> msgspec.msgpack.Decoder[Record]:
    if not name or not schema:
        raise CorruptRecord(f"a record of {topic.name} without type and schema headers")
    known = _decoders(topic).get(name)
    if known is None:
        raise UnknownRecord(f"{topic.name} holds a record of type {name!r}, which this software does not know")
    major = schema.partition(b".")[0]
    if not major.isdigit():
        raise CorruptRecord(f"{name!r} names its schema as {schema!r}, not as major.minor")
    if int(major) != known[0]:
        raise UnknownRecord(f"{topic.name} holds {name!r} of schema {schema!r}; this software knows major {known[0]}")
    return known[1]


def _where(message: Message) -> str:
    return f"{message.topic}[{message.partition}]@{message.offset}"
