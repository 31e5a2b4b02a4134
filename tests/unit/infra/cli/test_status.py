"""What `status` prints, from a hand-written overview."""

from __future__ import annotations

import pytest

from infra.cli.fleet import Fleet
from infra.cli.overview import Decided, Lag, Overview, Training, decided_of
from infra.cli.status import described, lines, ranges
from schemas.grant import Grant, Role
from schemas.node import Control, NodeStatus
from schemas.record import Record
from schemas.training import Consumed, Dropped, Drops, Plan, Step
from streams.codec import Entry
from tests.unit.trainer.trees import place
from workers.retention import Margin

LATELY = Decided(3, 24, {"no signal": 8, "too old": 2})
CLUSTER = {"bootstrap": "host:1", "brokers": 1, "local_nodes": [], "namespace": "n.", "topics": ["n.nodes", "n.sessions"]}


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2 5"), ([7, 1, 6], "1 6-7")])
def test_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def said_of(*records: Record) -> list[str]:
    fleet = Fleet(partitions=3)
    for offset, record in enumerate(records):
        fleet.apply(Entry(0, offset, 1000, record))
    near = [Margin("assembler", "sessions", 2, 40, 0.1, "retention.ms", 60_480.0)]
    overview = Overview(fleet, Training("try", 4, 3, 2, 0.25, decided=LATELY), [Lag("reward", "trajectories", 5, 9)], 1, near)
    return list(lines({**CLUSTER, **described(overview)}))


def test_everything_has_a_line() -> None:
    said = said_of(
        Control(command="pause", reason="rack move"), Control(command="drain", node="a"),
        NodeStatus(
            node="a", incarnation="i", tags=["rollout"], state="left", version=3, partitions=[0, 1], running=2, waiting=1, own_s=1.25,
            first_token_s=0.5,
        ),
        Role(node="a", role="rollout", reason="no batch"), Role(node="b", role="train", asleep=True, reason="1 train and return"),
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
        "role         a: rollout: no batch",
        "role         b: asleep on the way to train: 1 train and return",
        "training     run try: step 4, version 3, 2 groups in flight, reward 0.250",
        "loss         in the last 3 steps 10 sessions were dropped (no signal 8, too old 2) and 24 trained; "
        "tokens and lengths: `seamlessflow audit loss`",
        "lag          reward: 4 behind 9 in trajectories",
        "retention    assembler stands at 40 in sessions 2: at most 10% of retention.ms is left (16.8 h); "
        "raise it, or see why assembler does not go on",
        "dead letters 1: `seamlessflow deadletter list`",
    ]


def test_a_namespace_without_topics_ends_after_the_cluster() -> None:
    assert list(lines({**CLUSTER, "topics": []})) == ["cluster      host:1: 1 brokers answer", "topics       n.: none"]


def test_what_became_of_sessions_is_counted_over_steps_and_drops() -> None:
    plan = Plan(places=[place(1), place(2)], rows=[], micro_batches=[], mini_batches=[])
    step = Step(step=9, version=8, plan=plan, drops=[Dropped(place=place(3), reason="too old")], consumed=Consumed(), weights_sha256="")
    alone = Drops(drops=[Dropped(place=place(n), reason="no signal") for n in (4, 5)], consumed=Consumed())
    found = decided_of([step, alone, step])
    assert found == Decided(2, 4, {"too old": 2, "no signal": 2})
    assert decided_of([]) == Decided()


def test_without_drops_there_is_no_line_about_them() -> None:
    overview = Overview(Fleet(partitions=1), Training("r", 1, 1, 0, None, decided=Decided(1, 8)), [], 0, [])
    assert not [line for line in lines({**CLUSTER, **described(overview)}) if line.startswith("loss")]
