"""From a message's bytes to an Entry: plain msgpack, defaults filled in, shapes and arrays checked (R4).

Invariant: an Entry has every field of its shape, of the right kind. What cannot become one raises Unreadable with the reason; `stops` is
true where readers of `sessions` stop (newer software may have written it: a type or major that the audit does not know; or its blob is
gone) and false where the bytes are corrupt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy

from infra.audit.findings import Place
from infra.audit.payload import NoPayload, payload
from infra.audit.shapes import MAJOR, PART_SHAPES, REQUIRED, TOPIC_SHAPES, Kind, Shape
from streams.broker import Message

Fields = dict[str, Any]


class Unreadable(ValueError):
    """A message that is no record. Never leaves the audit: it becomes a violation of R4."""

    def __init__(self, text: str, *, stops: bool = False) -> None:
        super().__init__(text)
        self.stops = stops


@dataclass(frozen=True, slots=True)
class Entry:
    """One record where it stands. `fields` holds every field of its shape; `nonce` is the header that cas writes."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    type: str
    fields: Fields
    nonce: bytes | None = None

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]

    @property
    def place(self) -> Place:
        """Where it stands, without its fields."""
        return Place(self.topic, self.partition, self.offset)


def read_entry(message: Message, topic: str) -> Entry:
    """Read one message of `topic` (without the namespace).

    :raises Unreadable: see the module.
    """
    headers = dict(message.headers)
    raw = _map(_value(message))
    kind = raw.pop("type", None)
    shape = TOPIC_SHAPES[topic].get(kind) if isinstance(kind, str) else None
    _require_known(topic, kind, headers, shape)
    assert shape is not None
    fields = _filled(str(kind), shape, raw)
    if kind in _ARRAYS:
        _ARRAYS[str(kind)](fields)
    return Entry(topic, message.partition, message.offset, message.timestamp_ms, str(kind), fields, headers.get("nonce"))


def integers(data: bytes | bytearray) -> list[int]:
    """Little-endian int32 of a `bin` field."""
    values: list[int] = numpy.frombuffer(data, "<i4").tolist()
    return values


def _value(message: Message) -> bytes | None:
    try:
        return payload(message.value, message.headers)
    except NoPayload as reason:
        raise Unreadable(str(reason), stops=reason.readers_stop) from reason


def _map(value: bytes | None) -> Fields:
    if value is None:
        raise Unreadable("no value")
    try:
        raw = msgpack.unpackb(value, raw=False, strict_map_key=False)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise Unreadable(f"not msgpack: {error or type(error).__name__}") from error
    if not isinstance(raw, dict):
        raise Unreadable(f"not a map but {type(raw).__name__}")
    return raw


def _require_known(topic: str, kind: object, headers: dict[str, bytes], shape: Shape | None) -> None:
    said = headers.get("type", b"").decode(errors="replace")
    schema = headers.get("schema", b"").decode(errors="replace")
    if said and said not in TOPIC_SHAPES[topic]:
        raise Unreadable(f"unknown type {said!r}", stops=True)
    if schema and schema.partition(".")[0] != MAJOR:
        raise Unreadable(f"unknown major {schema!r} of {said or kind}", stops=True)
    if shape is None:
        raise Unreadable(f"unknown type {kind!r}", stops=isinstance(kind, str))
    if said != kind or not schema:
        raise Unreadable(f"headers say type {said!r}, schema {schema!r} of a {kind}")


def _filled(name: str, shape: Shape, raw: object) -> Fields:
    if not isinstance(raw, dict):
        raise Unreadable(f"{name} is not a map but {type(raw).__name__}")
    fields = {}
    for field, (kind, default) in shape.items():
        value = raw.get(field, default)
        if not isinstance(kind, tuple) or type(value) not in kind:  # exact types: a bool is no number
            value = _part(name, field, kind, value)
        fields[field] = value
    return fields


def _part(name: str, field: str, kind: Kind, value: Any) -> Any:
    """A field that is no plain value of its kind: a map of its own, a list of such, or an error."""
    if value is REQUIRED:
        raise Unreadable(f"{name}.{field} is missing")
    if isinstance(kind, str):
        return _filled(kind, PART_SHAPES[kind], value)
    if isinstance(kind, list) and isinstance(value, list):
        return [_filled(kind[0], PART_SHAPES[kind[0]], each) for each in value]
    raise Unreadable(f"{name}.{field} is {type(value).__name__}")


def _count(name: str, data: bytes, width_bytes: int = 4) -> int:
    if len(data) % width_bytes:
        raise Unreadable(f"{name} of {len(data)} bytes ends inside a value")
    return len(data) // width_bytes


def _aligned(**counts: int) -> None:
    if len(set(counts.values())) > 1:
        raise Unreadable("arrays differ in length: " + ", ".join(f"{name} {count}" for name, count in counts.items()))


def _finite(name: str, data: bytes) -> None:
    if not numpy.isfinite(numpy.frombuffer(data, "<f4")).all():
        raise Unreadable(f"{name} holds a value that is not finite")


def _check_request(fields: Fields) -> None:
    _count("tokens", fields["tokens"])
    if fields["base_length"] < 0 or (fields["base"] is None and fields["base_length"]):
        raise Unreadable(f"base_length {fields['base_length']} on base {fields['base']}")
    _check_sampling(fields["sampling"])


def _check_sampling(sampling: Fields) -> None:
    if sampling["max_tokens"] < 1 or not 0.0 <= sampling["temperature"] <= 100.0:
        raise Unreadable(f"max_tokens {sampling['max_tokens']}, temperature {sampling['temperature']}")


def _check_span(fields: Fields) -> None:
    _aligned(tokens=_count("tokens", fields["tokens"]), logprobs=_count("logprobs", fields["logprobs"]))
    _finite("logprobs", fields["logprobs"])
    if fields["finish"] not in (None, "stop", "length", "failed"):
        raise Unreadable(f"finish {fields['finish']!r}")
    if not fields["tokens"] and fields["finish"] is None:
        raise Unreadable("a span without tokens and without an end")
    if fields["start"] < 0 or not 0 <= fields["kv_version"] <= fields["version"]:
        raise Unreadable(f"start {fields['start']}, version {fields['version']}, kv_version {fields['kv_version']}")


def _check_trajectory(fields: Fields) -> None:
    for node in fields["nodes"]:
        tokens = _count("tokens", node["tokens"])
        logprobs, versions = _count("logprobs", node["logprobs"]), _count("versions", node["versions"])
        _aligned(tokens=tokens, mask=len(node["mask"]), logprobs=logprobs, versions=versions)
        _finite("logprobs", node["logprobs"])
        if not 0 <= node["prompt"] <= tokens or set(node["mask"]) - {0, 1}:
            raise Unreadable(f"prompt {node['prompt']} of {tokens} tokens, mask values {sorted(set(node['mask']))}")


def _check_score(fields: Fields) -> None:
    if not math.isfinite(fields["value"]):
        raise Unreadable(f"value {fields['value']}")


_ARRAYS: dict[str, Callable[[Fields], None]] = {
    "Request": _check_request, "Span": _check_span, "Trajectory": _check_trajectory, "Score": _check_score,
}
