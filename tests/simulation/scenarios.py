"""Faults that go together: what a planted defect needs in order to show, and what faults drawn one by one bring about too seldom.

A seed `7.12~late claim` is schedule 12 of campaign 7 with the faults of this scenario among its own. Times, targets and lengths are drawn
from the seed all the same; `rollout-0` and `rollout-1` change places in every second schedule.
"""

from __future__ import annotations

from typing import NamedTuple


class Likely(NamedTuple):
    """A fault of a scenario: `kind` strikes `target` at a time between `from_s` and `to_s` seconds, for `least_s` to `most_s` seconds.

    `about`, `calls` (one of them) and `is_after` as `connection.Trap`; `share`: in so many of the schedules.
    """

    kind: str
    target: str
    from_s: float
    to_s: float
    about: str = ""
    calls: tuple[int, ...] = (0,)
    is_after: bool = False
    least_s: float = 0.4
    most_s: float = 5.0
    share: float = 1.0


SCENARIOS: dict[str, tuple[Likely, ...]] = {
    # A Claim that a broken producer sent a second time lands after its owner has handed over.
    "late claim": (
        Likely("sends late", "rollout-0", 0.01, 0.05, "Claim"),
        Likely("sends late", "rollout-1", 0.01, 0.05, "Claim"),
        Likely("leave", "rollout-0", 0.6, 1.5),
    ),
    # An owner stops with a span in hand, and goes on while its successor works on the same request.
    "late span": (
        Likely("freeze", "rollout-0", 0.3, 1.5, "Span", (0, 1, 2, 3), least_s=2.2, most_s=3.6),
        Likely("freeze", "rollout-1", 0.3, 1.5, "Span", (0, 1, 2, 3), least_s=2.2, most_s=3.6, share=0.5),
    ),
    # What an owner sent before it died lands after its successor has read the partition, and before that one's Claim.
    "slow takeover": (
        Likely("sends slow", "rollout-0", 0.55, 0.8, "Span"),
        Likely("kill", "rollout-0", 0.9, 1.1, "Span", (0, 1, 2), True, 0.6, 1.2),
        Likely("sends slow", "rollout-1", 0.9, 1.1, "Claim", least_s=3.0),
        Likely("sends slow", "rollout-0", 1.5, 1.55, "Claim", least_s=3.0),
    ),
    # A gateway or an owner is not told that its record stands: it is sent again.
    "sent again": (
        Likely("send unanswered", "gateway-0", 0.1, 1.0, "Request", (0, 1)),
        Likely("send unanswered", "gateway-1", 0.1, 1.0, "Request", (0, 1)),
        Likely("sends late", "gateway-0", 1.0, 2.0, "Request"),
        Likely("send unanswered", "rollout-0", 0.3, 1.0, "Span", (0, 1, 2)),
        Likely("send unanswered", "rollout-1", 0.3, 1.0, "Span", (0, 1, 2)),
    ),
    # Agents die in the middle of episodes: what they had done and not committed is done once more.
    "agents again": (
        Likely("kill", "agents", 0.5, 1.2, least_s=0.1, most_s=0.5),
        Likely("kill", "agents", 1.6, 2.6, least_s=0.1, most_s=0.5),
    ),
    # An assembler that reads late calls idle what goes on: owners are away meanwhile, so that sessions are long.
    "late close": (
        Likely("reads stale", "assembler", 0.3, 1.0, least_s=3.5),
        Likely("sends slow", "assembler", 0.5, 1.0, "Close"),
        Likely("freeze", "rollout-0", 0.4, 1.0, least_s=2.6, most_s=3.8),
        Likely("freeze", "rollout-1", 0.4, 1.0, least_s=2.6, most_s=3.8),
    ),
    # Owners die one after another under sessions that stay open, and the assembler after them.
    "owners in turn": (
        Likely("kill", "rollout-0", 0.7, 1.5, least_s=0.1, most_s=0.6),
        Likely("kill", "rollout-1", 1.5, 2.5, least_s=0.1, most_s=0.6),
        Likely("kill", "assembler", 1.8, 3.2, least_s=0.1, most_s=0.6),
        Likely("kill", "rollout-0", 2.6, 3.6, least_s=0.1, most_s=0.6),
    ),
    # The assembler dies with Trajectories on their way.
    "assembler dies": (
        Likely("sends slow", "assembler", 0.8, 1.6, "Trajectory", (0, 1)),
        Likely("kill", "assembler", 1.7, 2.4, least_s=0.1, most_s=0.4),
        Likely("kill", "assembler", 2.8, 4.0, "Trajectory", (0, 1)),
    ),
    # Trajectories stand twice in the log, and the trainer dies between the two.
    "trajectories again": (
        Likely("sends late", "assembler", 0.8, 1.6, "Trajectory", (0, 1, 2)),
        Likely("send unanswered", "assembler", 1.2, 2.6, "Trajectory", (0, 1)),
        Likely("kill", "trainer", 1.8, 3.2, least_s=0.1, most_s=0.6),
        Likely("kill", "assembler", 2.0, 3.5, "Trajectory", is_after=True),
    ),
    # The trainer dies after a commit, before and after what follows it.
    "trainer dies": (
        Likely("kill", "trainer", 0.8, 2.5, "committed", (0, 1)),
        Likely("kill", "trainer", 2.0, 4.0, "commit", is_after=True),
        Likely("kill", "trainer", 2.5, 4.5, least_s=0.1, most_s=0.6),
    ),
    # A writer of cas stops with a transaction in hand, and goes on after its successor has written.
    "zombie writers": (
        Likely("freeze", "trainer", 0.8, 2.5, "commit", (0, 1), least_s=1.0, most_s=3.0),
        Likely("freeze", "source", 0.05, 1.5, "commit", (0, 1)),
        Likely("freeze", "scheduler", 0.3, 2.5, "commit"),
    ),
    # Whoever scores dies with Scores on their way, after it went on to the next Trajectories.
    "work in hand": (
        Likely("sends slow", "reward", 0.5, 1.0, "Score"),
        Likely("kill", "reward", 1.8, 2.6, least_s=0.1, most_s=0.3),
        Likely("sends slow", "reward", 2.7, 3.0, "Score"),
        Likely("kill", "reward", 3.4, 4.2, least_s=0.1, most_s=0.3),
    ),
    # Producers break, and a suffix of what they sent is gone.
    "lost suffix": (
        Likely("sends lost", "rollout-0", 0.1, 1.2, "Span", (0, 1)),
        Likely("sends lost", "gateway-0", 0.1, 1.2, "Request"),
        Likely("sends lost", "assembler", 0.8, 2.0, "Trajectory"),
        Likely("sends lost", "reward", 0.8, 2.0, "Score"),
    ),
}  # fmt: skip
"""Named for what happens in them."""
