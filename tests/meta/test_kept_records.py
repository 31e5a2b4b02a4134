"""The records as they are, compared with what is kept of them (`tests.golden.keep`)."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.golden.keep import FIELDS, fields, kept_bytes, lines, plain, reshaped, structs

HINT = "a record changed: see docs/evolution.md; what is new is kept by `python -m tests.golden.keep`"


def test_no_field_is_gone_or_has_another_type_or_default() -> None:
    now = set(fields())
    assert [line for line in lines(FIELDS) if line not in now] == [], HINT


def test_every_field_is_kept() -> None:
    assert set(fields()) <= set(lines(FIELDS)), HINT


def test_bytes_are_kept_in_which_every_field_of_a_type_is_set() -> None:
    types = {kind.__name__: kind for kind in structs()}
    seen: dict[str, set[str]] = defaultdict(set)

    def note(kind: Any, part: dict[str, Any]) -> dict[str, Any]:
        seen[kind.__name__] |= part.keys()
        return part

    for kept in kept_bytes():
        reshaped(types[kept.type], plain(kept.value), note)
    assert {f"{kind}.{name}" for kind, names in seen.items() for name in names - {"type"}} == {line.split()[0] for line in fields()}, HINT
