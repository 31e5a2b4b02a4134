"""Per-token arrays on the wire: little-endian `bin` fields, four bytes a value (masks: one byte).

A list of 1,024 floats costs msgpack 60 microseconds, the same numbers as `bin` 2: hence bytes. numpy readers use
`numpy.frombuffer(field, "<i4")` or `"<f4"`; this module needs the standard library only.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable
from typing import Any

WIDTH_BYTES = 4


def pack_i4(values: Iterable[int]) -> bytes:
    """Token ids or versions as little-endian int32.

    :raises OverflowError: a value does not fit in 32 bits.
    """
    return _little(array("i", values))


def pack_f4(values: Iterable[float]) -> bytes:
    """Log-probabilities (nats) as little-endian float32."""
    return _little(array("f", values))


def unpack_i4(data: bytes) -> list[int]:
    """The int32 values of a `bin` field."""
    values: list[int] = _read("i", data).tolist()
    return values


def unpack_f4(data: bytes) -> list[float]:
    """The float32 values of a `bin` field."""
    values: list[float] = _read("f", data).tolist()
    return values


def length(data: bytes) -> int:
    """How many four-byte values a field holds.

    :raises ValueError: it ends inside a value.
    """
    size_bytes = len(data)
    if size_bytes % WIDTH_BYTES:
        raise ValueError(f"array of {size_bytes} bytes ends inside a four-byte value")
    return size_bytes // WIDTH_BYTES


def require_finite(name: str, data: bytes) -> None:
    """R4: no NaN and no infinity. The sum of finite float32 values is finite in double precision, so one sum tells.

    :raises ValueError: the field holds a value that is not finite.
    """
    if not math.isfinite(sum(_read("f", data))):
        raise ValueError(f"{name} holds a value that is not finite")


def require_aligned(**lengths: int) -> None:
    """R4: parallel arrays have one length.

    :raises ValueError: names every array with its length.
    """
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise ValueError(f"arrays differ in length: {said}")


def _read(code: str, data: bytes) -> array[Any]:
    length(data)
    values: array[Any] = array(code)
    values.frombytes(data)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def _little(values: array[Any]) -> bytes:
    if sys.byteorder == "big":
        values.byteswap()
    return values.tobytes()
