"""Bytes of a record for people: plain msgpack, no schema, so that whatever stands in the log can be looked at.

Invariant: any bytes give an answer; none raises. Per-token arrays become numbers, other bytes become hex.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgpack

from infra.audit.payload import NoPayload, payload
from schemas.arrays import unpack_f4, unpack_i4

INTEGERS = frozenset({"tokens", "versions"})
FLOATS = frozenset({"logprobs"})
OCTETS = frozenset({"mask"})


def readable(value: bytes | None) -> dict[str, Any] | None:
    """A record's value as plain data; `{"error": …, "raw": hex}` where it is no msgpack map; None for a tombstone."""
    if value is None:
        return None
    try:
        data = msgpack.unpackb(value, raw=False, strict_map_key=False)
    except (ValueError, TypeError, msgpack.UnpackException) as failure:
        return {"error": f"not msgpack: {str(failure) or type(failure).__name__}", "raw": value.hex()}
    if not isinstance(data, dict):
        return {"error": f"a msgpack {type(data).__name__}, not a map", "raw": value.hex()}
    return {str(name): _plain(str(name), field) for name, field in data.items()}


def readable_payload(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> dict[str, Any] | None:
    """As `readable`, with a payload of the blob store as if it stood in the log; `{"error": …, "reference": …}` where it cannot be had."""
    try:
        return readable(payload(value, headers))
    except NoPayload as reason:
        return {"error": str(reason), "reference": readable(value)}


def printable(data: bytes | str | None) -> str | None:
    """A key or header: text where it is text, else hex."""
    if data is None or isinstance(data, str):
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return data.hex()
    return text if text.isprintable() else data.hex()


def _plain(name: str, field: Any) -> Any:
    if isinstance(field, bytes):
        return _array(name, field)
    if isinstance(field, dict):
        return {str(inner): _plain(str(inner), value) for inner, value in field.items()}
    if isinstance(field, list):
        return [_plain(name, value) for value in field]
    if isinstance(field, float) and not math.isfinite(field):
        return str(field)
    return field if isinstance(field, str | int | float | None) else str(field)


def _array(name: str, field: bytes) -> Any:
    try:
        if name in INTEGERS:
            return unpack_i4(field)
        if name in FLOATS:
            return [value if math.isfinite(value) else str(value) for value in unpack_f4(field)]
    except ValueError:  # ends inside a value
        return field.hex()
    return list(field) if name in OCTETS else field.hex()
