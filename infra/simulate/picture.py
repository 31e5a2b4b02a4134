"""Who did what when, as an SVG: one row a node, one colour a mode. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

from infra.simulate.node import Mode, Stretch

__all__ = ["Panel", "picture"]

COLOURS: dict[Mode, tuple[str, str]] = {
    "rollout": ("#4c9f70", "generates"), "train": ("#3b6fb6", "trains"), "ready": ("#d9d9d9", "waits for a step"),
    "switch": ("#e0a030", "switches"), "gone": ("#b03a2e", "is gone"),
}
WIDTH, LEFT, ROW, GAP, TEXT = 1200.0, 130.0, 6.0, 34.0, 12.0
MOST_NODES = 64


class Panel(NamedTuple):
    """One policy: what its nodes did, and the ends of its steps, all in seconds."""

    name: str
    nodes: Mapping[str, Sequence[Stretch]]
    steps_s: Sequence[float]


def picture(title: str, panels: Sequence[Panel], begin_s: float, end_s: float) -> str:
    """All panels, one below the other, over the same time. Of more than 64 nodes the first are drawn."""
    parts: list[str] = []
    top = 2 * GAP
    for panel in panels:
        parts += _panel(panel, top, begin_s, end_s)
        top += GAP + ROW * min(len(panel.nodes), MOST_NODES)
    size = f'width="{WIDTH:.0f}" height="{top:.0f}" viewBox="0 0 {WIDTH:.0f} {top:.0f}"'
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="{TEXT:.0f}">', *_legend(title)]
    return "\n".join([*head, *parts, "</svg>", ""])


def _legend(title: str) -> Iterator[str]:
    yield f'<rect width="100%" height="100%" fill="white"/><text x="10" y="20">{escape(title)}</text>'
    for number, (colour, said) in enumerate(COLOURS.values()):
        left = LEFT + number * 160
        yield f'<rect x="{left:.0f}" y="32" width="12" height="12" fill="{colour}"/><text x="{left + 18:.0f}" y="43">{said}</text>'


def _panel(panel: Panel, top: float, begin_s: float, end_s: float) -> Iterator[str]:
    scale = (WIDTH - LEFT - 10.0) / (end_s - begin_s)
    rows = list(panel.nodes.items())[:MOST_NODES]
    yield f'<text x="10" y="{top + TEXT:.0f}">{escape(panel.name)}</text>'
    for number, (_, stretches) in enumerate(rows):
        for stretch in stretches:
            left, right = max(stretch.begin_s, begin_s), min(stretch.end_s, end_s)
            if right > left:
                yield _bar(LEFT + (left - begin_s) * scale, top + number * ROW, (right - left) * scale, COLOURS[stretch.mode][0])
    for step_s in panel.steps_s:
        if begin_s <= step_s <= end_s:
            left = LEFT + (step_s - begin_s) * scale
            yield f'<path d="M{left:.1f} {top:.0f}v{ROW * len(rows):.0f}" stroke="black" stroke-width="0.7"/>'


def _bar(left: float, top: float, width: float, colour: str) -> str:
    return f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.2f}" height="{ROW - 1:.0f}" fill="{colour}"/>'
