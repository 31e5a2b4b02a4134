"""What `status` prints, from a hand-written overview."""

from __future__ import annotations

import pytest

from infra.cli.fleet import Fleet
from infra.cli.overview import Lag, Overview, Training
from infra.cli.status import described, lines, ranges
from schemas.grant import Grant
from schemas.node import Control, NodeStatus
from schemas.record import Record
from streams.codec import Entry
from workers.retention import Margin

CLUSTER = {"bootstrap": "host:1", "brokers": 1, "local_nodes": [], "namespace": "n.", "topics": ["n.nodes", "n.sessions"]}


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2 5"), ([7, 1, 6], "1 6-7")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def said_of(*records: Record) -> list[str]:
    fleet = Fleet(partitions=3)
    for offset, record in enumerate(records):
        fleet.apply(Entry(0, offset, 1000, record))
    near = [Margin("assembler", "sessions", 2, 40, 0.1, "retention.ms", 60_480.0)]
    overview = Overview(fleet, Training("try", 4, 3, 2, 0.25), [Lag("reward", "trajectories", 5, 9)], 1, near)
    return list(lines({**CLUSTER, **described(overview)}))


def test_everything_has_a_line() -> None:
    said = said_of(
        Control(command="pause", reason="rack move"), Control(command="drain", node="a"),
        NodeStatus(
            node="a", incarnation="i", tags=["rollout"], state="left", version=3, partitions=[0, 1], running=2, waiting=1, own_s=1.25,
            first_token_s=0.5,
        ),
        Grant(partition=0, node="a", cause="dead", reason="b is gone"), Grant(partition=1, node="a", cause="dead", reason="b is gone"),
    )  # fmt: skip
    node = said.pop(3)  # ends with the time since 1970
    expected = "a: left, version 3, partitions 0-1, 2 running, 1 waiting, took them in 1.2 s and 0.5 s to the first token; heard "
    assert node.startswith(f"node         {expected}")
    assert said == [
        "cluster      host:1: 1 brokers answer",
        "topics       n.: nodes, sessions",
        "scheduler    none is at work: nothing moves, and nobody knows who lives; PAUSED (rack move); draining a (no reason given)",
        "owner        a: partitions 0-1 (dead): b is gone",
        "owner        nobody: partitions 2: never granted",
        "training     run try: step 4, version 3, 2 groups in flight, reward 0.250",
        "lag          reward: 4 behind 9 in trajectories",
        "retention    assembler stands at 40 in sessions 2: at most 10% of retention.ms is left (16.8 h); "
        "raise it, or see why assembler does not go on",
        "dead letters 1: `seamlessflow deadletter list`",
    ]


def test_a_namespace_without_topics_ends_after_the_cluster() -> None:
    assert list(lines({**CLUSTER, "topics": []})) == ["cluster      host:1: 1 brokers answer", "topics       n.: none"]
