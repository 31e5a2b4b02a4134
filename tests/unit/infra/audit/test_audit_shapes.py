"""The audit's own statement of the records says the same as `schemas`: names, and defaults where there are any."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from infra.audit.shapes import PART_SHAPES, REQUIRED, TOPIC_SHAPES, Shape
from schemas import session, training, trajectory
from schemas.topics import TOPICS

PARTS: dict[str, Any] = {name: getattr(training, name, getattr(trajectory, name, getattr(session, name, None))) for name in PART_SHAPES}
RECORDS = [(kind, TOPIC_SHAPES[topic.name]) for topic in TOPICS.values() if topic.name in TOPIC_SHAPES for kind in topic.records]


def fields_of(struct: Any) -> dict[str, Any]:
    """Name → default (REQUIRED without one)."""
    return {field.name: _default(field) for field in msgspec.structs.fields(struct)}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return REQUIRED if field.default is msgspec.NODEFAULT else field.default


def defaults_of(shape: Shape) -> dict[str, Any]:
    return {name: default for name, (_, default) in shape.items()}


@pytest.mark.parametrize(("kind", "shapes"), RECORDS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_record_type_has_the_fields_and_defaults_of_its_schema(kind: type, shapes: dict[str, Shape]) -> None:
    assert defaults_of(shapes[kind.__name__]) == fields_of(kind), "a field changed: say it in infra/audit/shapes.py, too"


@pytest.mark.parametrize("name", PART_SHAPES)
def test_every_part_has_the_fields_and_defaults_of_its_schema(name: str) -> None:
    assert defaults_of(PART_SHAPES[name]) == fields_of(PARTS[name])
