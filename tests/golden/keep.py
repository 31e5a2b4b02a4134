"""What stood on the wire, kept for ever: every field of every record with its type and default (`fields.txt`), and records as bytes.

`python -m tests.golden.keep` adds what is new: a field, a record type, bytes in which every field is set (`bytes.txt`). It never changes a
line: a field that is gone, or has another type or default, breaks the rules of evolution (docs/evolution.md), and the tests name it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard, get_args, get_origin

import msgpack
import msgspec

from schemas.topics import TOPICS
from tests.golden.records import WIRE

FIELDS, BYTES = Path(__file__).with_name("fields.txt"), Path(__file__).with_name("bytes.txt")
VALUES: dict[Any, Any] = {int: 5, float: 0.25, str: "x", bytes: b"\x01\x02\x03\x04", Any: "any"}
"""By type; none is a default."""


class Kept(NamedTuple):
    """One line of `bytes.txt`."""

    topic: str
    type: str
    schema: str
    value: bytes

    def line(self) -> str:
        """As it stands in the file."""
        return f"{self.topic} {self.type} {self.schema} {self.value.hex()}"

    @classmethod
    def parse(cls, line: str) -> Kept:
        """A line of the file."""
        topic, kind, schema, value = line.split()
        return cls(topic, kind, schema, bytes.fromhex(value))


def kept_bytes() -> list[Kept]:
    """All lines of `bytes.txt`."""
    return [Kept.parse(line) for line in lines(BYTES)]


def lines(file: Path) -> list[str]:
    """The lines of a kept file."""
    return file.read_text(encoding="ascii").splitlines() if file.exists() else []


def fields() -> Iterator[str]:
    """Every field of every record and part as it is now: `Span.detail str ''`, or `required` in place of the default."""
    for kind in sorted(structs(), key=lambda kind: kind.__name__):
        for field in msgspec.structs.fields(kind):
            yield f"{kind.__name__}.{field.name} {_type_text(field.type)} {_default_text(field)}"


def structs() -> set[type[msgspec.Struct]]:
    """The records of all topics, and the parts that stand in them."""
    found: set[type[msgspec.Struct]] = set()
    waiting: list[Any] = [kind for topic in TOPICS.values() for kind in topic.records]
    while waiting:
        kind = waiting.pop()
        waiting += get_args(kind)
        if is_struct(kind) and kind not in found:
            found.add(kind)
            waiting += [field.type for field in msgspec.structs.fields(kind)]
    return found


def examples() -> Iterator[Kept]:
    """The bytes of each hand-written record, and of the same record with every other field set, too."""
    for topic, schema, wire, record in WIRE:
        for plain in (wire, {"type": wire["type"], **filled(type(record), wire)}):
            yield Kept(topic, wire["type"], schema, msgpack.packb(plain))


def filled(kind: type[msgspec.Struct], plain: dict[str, Any]) -> dict[str, Any]:
    """A record or part as a map, with a value that is no default for each field that it lacks."""
    values = {}
    for field in msgspec.structs.fields(kind):
        lacks = field.name not in plain
        values[field.name] = _invented(field.type, _default(field)) if lacks else _completed(field.type, plain[field.name])
    return values


def _completed(kind: Any, value: Any) -> Any:
    """A value that was given, its parts filled."""
    if isinstance(value, list):
        return [_completed(get_args(kind)[0], each) for each in value]
    return filled(kind, value) if is_struct(kind) else value


def plain(value: bytes) -> dict[str, Any]:
    """Bytes of a record as the reference library reads them."""
    said: dict[str, Any] = msgpack.unpackb(value, strict_map_key=False)
    return said


def reshaped(kind: Any, value: Any, change: Callable[[type[msgspec.Struct], dict[str, Any]], dict[str, Any]]) -> Any:
    """A value of a field of this type, each part in it replaced by `change(its type, its map)`, innermost first."""
    if isinstance(value, list) and get_args(kind):
        return [reshaped(get_args(kind)[0], each, change) for each in value]
    if not is_struct(kind):
        return value
    types = {field.name: field.type for field in msgspec.structs.fields(kind)}
    return change(kind, {name: reshaped(types.get(name, Any), each, change) for name, each in value.items()})


def _invented(kind: Any, default: Any) -> Any:
    """Some value of a type; not the default."""
    if get_origin(kind) is Literal:
        return next(each for each in get_args(kind) if each != default)
    if get_origin(kind) is dict:
        return {_invented(get_args(kind)[0], None): _invented(get_args(kind)[1], None)}
    if get_origin(kind) is list:
        return [_invented(get_args(kind)[0], None)]
    if get_args(kind):
        return _invented(next(each for each in get_args(kind) if each is not type(None)), default)
    if is_struct(kind):
        return filled(kind, {})
    return (not default) if kind is bool else VALUES[kind]


def is_struct(kind: Any) -> TypeGuard[type[msgspec.Struct]]:
    """Whether a field's type is a record's part."""
    return isinstance(kind, type) and get_origin(kind) is None and issubclass(kind, msgspec.Struct)


def _default(field: msgspec.structs.FieldInfo) -> Any:
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _default_text(field: msgspec.structs.FieldInfo) -> str:
    return "required" if field.required else repr(_default(field))


def _type_text(kind: Any) -> str:
    if isinstance(kind, type) and get_origin(kind) is None:
        return kind.__name__
    return re.sub(r"\b(?:\w+\.)+(\w+)", r"\1", str(kind)).replace(" ", "")


def _add(file: Path, new: list[str]) -> None:
    known = lines(file)
    added = [line for line in dict.fromkeys(new) if line not in known]
    file.write_text("".join(f"{line}\n" for line in [*known, *added]), encoding="ascii")
    print(f"{file.name}: {len(added)} lines added")


def main() -> None:
    """Add what is new."""
    named = {line.split()[0]: line for line in lines(FIELDS)}
    changed = [line for line in fields() if named.get(line.split()[0], line) != line]
    if changed:
        sys.exit("a field never changes its type or default; add another one: " + "; ".join(changed))
    _add(FIELDS, list(fields()))
    _add(BYTES, [kept.line() for kept in examples()])


if __name__ == "__main__":
    main()
