"""What a visitor sees while the demo runs: figures, two curves, the nodes, and what happened. Draws; knows nothing else.

Two forms: a live screen (rich), and plain lines for logs and pipes (`--plain`, or no terminal).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra.crew.crew import Event
from infra.demo.observer import Observer
from infra.demo.plot import plot

PLAIN_PERIOD_S = 5.0
EVENTS_SHOWN = 9
PLOT_WIDTH, PLOT_HEIGHT = 44, 5


class View(Protocol):
    """Where the demo tells what it sees."""

    def tell(self, event: Event) -> None:
        """Something happened."""
        ...

    def draw(self, observer: Observer, steps: int) -> None:
        """The state now; `steps` is the goal."""
        ...


@dataclass
class PlainView:
    """One line per event, and one about the state every few seconds."""

    console: Console
    began_s: float = field(default_factory=time.time)
    _drawn_s: float = 0.0

    def tell(self, event: Event) -> None:
        """Print it at once."""
        self.console.print(f"[{event.at_s - self.began_s:6.1f} s] {event.member}: {event.what}", markup=False, highlight=False)

    def draw(self, observer: Observer, steps: int) -> None:
        """Print a line, not too often."""
        now = time.time()
        if now - self._drawn_s < PLAIN_PERIOD_S or not observer.episodes:
            return
        self._drawn_s = now
        said = "  ".join(f"{name} {value}" for name, value in figures(observer, steps))
        self.console.print(f"[{now - self.began_s:6.1f} s] {said}", markup=False, highlight=False)


@dataclass
class LiveView:
    """A screen that is drawn again a few times a second."""

    live: Live
    began_s: float = field(default_factory=time.time)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=EVENTS_SHOWN))

    def tell(self, event: Event) -> None:
        """Keep it for the screen."""
        self.events.append(event)

    def draw(self, observer: Observer, steps: int) -> None:
        """Draw everything."""
        training = [step.metrics.get("reward_mean", 0.0) for step in observer.steps]
        held_out = [reward for _, reward in observer.evaluations.curve()]
        self.live.update(
            Group(
                _figures(observer, steps),
                Columns([_curve("training reward", training), _curve("held-out reward", held_out)]),
                _nodes(observer),
                _events(self.events, self.began_s),
            )
        )


@contextmanager
def open_view(console: Console, *, plain: bool) -> Iterator[View]:
    """The live screen on a terminal, else plain lines."""
    if plain or not console.is_terminal:
        yield PlainView(console)
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield LiveView(live)


def figures(observer: Observer, steps: int) -> list[tuple[str, str]]:
    """Names and values, as people read them."""
    last = observer.steps[-1] if observer.steps else None
    curve = observer.evaluations.curve()
    return [
        ("step", f"{len(observer.steps)}/{steps}"),
        ("version", str(max(observer.version, 0))),
        ("reward", f"{last.metrics.get('reward_mean', 0.0):.2f}" if last else "–"),
        ("held out", f"{curve[-1][1]:.3f}" if curve else "–"),
        ("tokens/s", f"{observer.tokens_per_s():.0f}"),
        ("episodes", str(observer.episodes)),
        ("open", str(observer.open_sessions())),
        ("staleness", str(last.staleness) if last else "–"),
    ]


def _figures(observer: Observer, steps: int) -> Table:
    pairs = figures(observer, steps)
    table = Table(*(name for name, _ in pairs), expand=True, title="SeamlessFlow: next letter (hello → ifmmp)")
    table.add_row(*(value for _, value in pairs))
    return table


def _curve(title: str, values: list[float]) -> Panel:
    lines = plot(values, PLOT_WIDTH, PLOT_HEIGHT)
    last = f"  {values[-1]:.2f}" if values else ""
    return Panel(Text("\n".join(lines), style="green"), title=title + last, width=PLOT_WIDTH + 4)


def _nodes(observer: Observer) -> Table:
    table = Table("node", "state", "version", "partitions", "running", "tokens", expand=True)
    for name, status in sorted(observer.nodes.items()):
        table.add_row(
            name, status.state, str(status.version), str(len(status.partitions)), str(status.running), str(status.tokens)
        )
    return table


def _events(events: deque[Event], began_s: float) -> Panel:
    lines = [f"{event.at_s - began_s:6.1f} s  {event.member}: {event.what}" for event in events]
    return Panel(Text("\n".join(lines)), title="events", height=EVENTS_SHOWN + 2)
