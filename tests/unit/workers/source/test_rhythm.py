"""How much is given out, by hand; and the bound and the numbering under random decisions, with restarts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.record import Record
from schemas.score import Score
from schemas.task import Task
from schemas.training import Consumed, Drops, Plan, Step, WeightVersion
from tests.unit.workers.source.plugins import Counted
from workers.source.rhythm import Rhythm
from workers.source.settings import SourceSettings


def rhythm(*history: Record, **more: Any) -> Rhythm:
    values: dict[str, Any] = {"members": 2, "groups_per_step": 3, "staleness_bound": 1, "steps": 100, "evaluate_first": False}
    made = Rhythm(SourceSettings(**{**values, "evaluate_every": 0, "evaluate_last": False, "seed": 5, **more}), Counted(5))
    for record in history:
        made.take(record)
    return made


def version(number: int, step: int | None = None) -> WeightVersion:
    return WeightVersion(version=number, step=step, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="")


def step(number: int, trained: list[int], dropped: list[int] | None = None) -> Step:
    plan = Plan(places=[], rows=[], micro_batches=[], mini_batches=[])
    return Step(
        step=number, version=number - 1, plan=plan, consumed=Consumed(), groups_trained=trained, groups_dropped=dropped or [],
        weights_sha256="",
    )


def drops(*groups: int) -> Drops:
    return Drops(groups=list(groups), consumed=Consumed())


def score(group: int, **more: Any) -> Score:
    return Score(trajectory=group, session=group, rule="r", value=1.0, purpose="eval", group=group, **more)


def give(made: Rhythm) -> list[Task]:
    """What is given out now, as if it were written."""
    tasks = made.next_tasks()
    for task in tasks:
        made.take(task)
    return tasks


def groups(tasks: list[Task]) -> list[int]:
    return sorted({task.group for task in tasks})


def test_nothing_is_given_out_before_there_is_a_model() -> None:
    assert rhythm().next_tasks() == []


def test_the_bound_is_filled_and_refilled_by_what_is_decided() -> None:
    made = rhythm(version(0))
    assert groups(give(made)) == [0, 1, 2, 3, 4, 5]  # (1 + 1) × 3
    assert give(made) == []
    made.take(step(1, trained=[1, 2, 4], dropped=[0]))
    assert groups(give(made)) == [6, 7, 8, 9]
    made.take(drops(3))
    made.take(drops(3))
    assert groups(give(made)) == [10]
    assert made.in_flight() == 6


def test_a_task_has_its_place_in_its_group_and_a_seed_of_its_own() -> None:
    tasks = give(rhythm(version(0)))
    assert [(task.number, task.group, task.member, task.members, task.purpose) for task in tasks[:4]] == [
        (0, 0, 0, 2, "train"), (1, 0, 1, 2, "train"), (2, 1, 0, 2, "train"), (3, 1, 1, 2, "train"),
    ]
    assert [task.payload["n"] for task in tasks] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert len({task.seed for task in tasks}) == len(tasks)


def test_no_more_is_started_than_the_steps_that_are_left_can_take() -> None:
    made = rhythm(version(0), steps=2)
    assert groups(give(made)) == [0, 1, 2, 3, 4, 5]
    made.take(step(1, trained=[0, 1, 2]))
    assert give(made) == []
    made.take(drops(3))
    assert groups(give(made)) == [6]
    made.take(step(2, trained=[4, 5, 6]))
    assert give(made) == []


def test_the_first_round_comes_first_and_training_waits_for_its_scores() -> None:
    made = rhythm(version(0), evaluate_first=True)
    tasks = give(made)
    assert [(task.purpose, task.evaluates, task.group, task.members, task.payload) for task in tasks] == [
        ("eval", 0, 0, 1, {"held out": 0}), ("eval", 0, 1, 1, {"held out": 1}),
    ]
    assert give(made) == []
    made.take(score(0))
    assert give(made) == []
    made.take(score(1, status="failed"))
    assert groups(give(made)) == [2, 3, 4, 5, 6, 7]


def test_a_restart_in_the_middle_of_training_waits_for_no_scores_again() -> None:
    first = rhythm(version(0), evaluate_first=True)
    history = give(first)
    first.take(score(0))
    first.take(score(1))
    history += give(first)
    again = rhythm(*history, version(0), drops(2), evaluate_first=True)
    assert groups(give(again)) == [8]


def test_rounds_in_between_and_at_the_end() -> None:
    made = rhythm(version(0), evaluate_every=2, evaluate_last=True, steps=3)
    assert {task.evaluates for task in give(made)} == {None}
    made.take(step(1, [0, 1, 2]))
    made.take(version(1, 1))
    assert all(task.evaluates is None for task in give(made))
    made.take(step(2, [3, 4, 5]))
    made.take(version(2, 2))
    assert {task.evaluates for task in give(made)} == {2}
    assert {task.evaluates for task in give(made)} <= {None}
    made.take(step(3, [8, 9, 10]))
    made.take(version(3, 3))
    assert {task.evaluates for task in give(made)} == {3}
    assert give(made) == []


def test_each_round_has_the_same_prompts_and_seeds() -> None:
    made = rhythm(version(0), evaluate_first=True, evaluate_every=1)
    first = give(made)
    made.take(version(1, 1))
    second = give(made)
    assert [(task.payload, task.seed) for task in first] == [(task.payload, task.seed) for task in second]
    assert groups(second) == [2, 3]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 3), st.integers(1, 3))
def test_the_bound_holds_and_nothing_is_given_out_twice_whatever_is_decided_and_whenever_it_restarts(
    seed: int, bound: int, per_step: int
) -> None:
    draw = random.Random(seed)
    more = {"staleness_bound": bound, "groups_per_step": per_step, "evaluate_every": 3}
    history: list[Record] = [version(0)]
    made = rhythm(*history, **more)
    written: list[Task] = []
    running: set[int] = set()
    steps = 0
    for _ in range(40):
        tasks = give(made)
        written += tasks
        history += tasks
        running |= {task.group for task in tasks if task.purpose == "train"}
        assert len(running) == made.in_flight() <= (bound + 1) * per_step
        if draw.random() < 0.4 and len(running) >= per_step:
            steps += 1
            trained = draw.sample(sorted(running), per_step)
            news: list[Record] = [step(steps, trained), version(steps, steps)]
        else:
            trained = draw.sample(sorted(running), min(len(running), draw.randint(0, 2)))
            news = [drops(*trained)]
        running -= set(trained)
        history += news
        if draw.random() < 0.3:
            old = [record for record in history if isinstance(record, Task)]
            draw.shuffle(old)  # partitions are read one after the other
            made = rhythm(*old, *(record for record in history if not isinstance(record, Task)), **more)
        else:
            for record in news:
                made.take(record)
    assert [task.number for task in written] == list(range(len(written)))
    assert groups(written) == list(range(len(groups(written))))
    trained_payloads = [task.payload["n"] for task in written if task.purpose == "train" and task.member == 0]
    assert trained_payloads == list(range(len(trained_payloads)))


@pytest.mark.parametrize("evaluate_last", [False, True])
def test_without_steps_only_evaluations_are_given_out(evaluate_last: bool) -> None:
    made = rhythm(version(0), steps=0, evaluate_first=True, evaluate_last=evaluate_last)
    assert {task.purpose for task in give(made)} == {"eval"}
    made.take(score(0))
    made.take(score(1))
    assert give(made) == []
