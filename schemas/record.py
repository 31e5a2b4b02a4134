"""The base of every record, and how a record names itself on the wire.

A record is one msgpack map with a `type` tag. Its headers repeat the type and carry `schema` (`major.minor`), so that a reader knows
what it holds before it decodes. Evolution has four rules: add fields with defaults; never change a meaning, type or unit; never
reuse a name; a new major is a new type. Unknown fields pass; an unknown type or major never does (R4).
"""

from __future__ import annotations

from typing import ClassVar

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True, omit_defaults=True):
    """One fact in the log. Subclasses are the types of `schemas.topics.TOPICS`."""

    MAJOR: ClassVar[int] = 1
    MINOR: ClassVar[int] = 0

    @classmethod
    def type_name(cls) -> str:
        """The name in the `type` header and in the msgpack tag."""
        return cls.__name__

    @classmethod
    def schema(cls) -> str:
        """`major.minor`, the text of the `schema` header."""
        return f"{cls.MAJOR}.{cls.MINOR}"

    def key(self) -> bytes | None:
        """The Kafka key: what compaction keeps the last record of, and what people see in the console tools."""
        return None
