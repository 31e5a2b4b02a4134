"""Payloads that stand in the blob store: fetched by the reference in the message, written from the description of the wire.

A message whose header `blob` is `1` holds, as its value, the msgpack map `{uri, sha256, bytes}` of the real value.

Invariant: what is answered has the length and the digest that the log names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import fsspec
import msgpack

HEADER, FORM = "blob", b"1"


class NoPayload(ValueError):
    """The value cannot be had. `readers_stop`: gone, damaged, or in a form of newer software; else the reference is no reference."""

    def __init__(self, text: str, *, readers_stop: bool) -> None:
        super().__init__(text)
        self.readers_stop = readers_stop


def payload(value: bytes | None, headers: Sequence[tuple[str, bytes]]) -> bytes | None:
    """The value of a message: its own, or that of the blob which it refers to.

    :raises NoPayload: see there.
    """
    form = dict(headers).get(HEADER)
    if form is None:
        return value
    if form != FORM:
        raise NoPayload(f"a blob reference of form {form!r}", readers_stop=True)
    uri, sha256, size_bytes = _reference(value)
    try:
        with fsspec.open(uri, "rb") as file:
            content: bytes = file.read()
    except (OSError, ValueError, ImportError) as error:
        raise NoPayload(f"blob {uri} cannot be read: {error!r}", readers_stop=True) from error
    if len(content) != size_bytes or hashlib.sha256(content).hexdigest() != sha256:
        raise NoPayload(f"blob {uri} is not the {size_bytes} bytes of sha256 {sha256} that the log names", readers_stop=True)
    return content


def _reference(value: bytes | None) -> tuple[str, str, int]:
    try:
        said = msgpack.unpackb(value or b"", raw=False)
        uri, sha256, size_bytes = said["uri"], said["sha256"], said["bytes"]
    except (ValueError, KeyError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise NoPayload(f"no blob reference: {error!r}", readers_stop=False) from error
    if not (isinstance(uri, str) and isinstance(sha256, str) and isinstance(size_bytes, int)):
        raise NoPayload("no blob reference: its fields are of other kinds", readers_stop=False)
    return uri, sha256, size_bytes
