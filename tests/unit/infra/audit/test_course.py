"""Which weights came into force, and from what: by hand."""

from __future__ import annotations

import pytest

from infra.audit.course import Made, course, in_force
from infra.audit.proof import Compared, Outcome, Report
from infra.audit.recompute_command import runs_of
from schemas.errors import LogError
from schemas.training import Consumed, Plan, Step, WeightVersion

PLAN = Plan(places=[], rows=[], micro_batches=[], mini_batches=[])


def step(number: int, published: int | None) -> Step:
    return Step(
        step=number, version=0, published=published, plan=PLAN, consumed=Consumed(), weights_sha256=f"w{number}",
        optimizer_sha256=f"o{number}", numerics={"threads": "1"},
    )  # fmt: skip


def version(number: int, of: int | None, weights: str, **again: object) -> WeightVersion:
    known = {"version": number, "step": of, "files": [], "weights_sha256": weights, "tokenizer_sha256": "t", "template_sha256": "p"}
    return WeightVersion(**{**known, **again})  # type: ignore[arg-type]


def outline(made: Made) -> tuple[int, int | None, str, int | None, list[int]]:
    return made.step, made.version.version if made.version else None, made.weights_sha256, made.base, [each.step for each in made.steps]


def test_a_step_is_made_from_the_weights_before_it() -> None:
    found = course([version(0, None, "w0"), step(1, 1), version(1, 1, "w1"), step(2, None)])
    assert [outline(each) for each in found] == [(0, 0, "w0", None, []), (1, 1, "w1", 0, [1]), (2, None, "w2", 1, [2])]


def test_a_version_made_again_is_in_force_from_then_on() -> None:
    records = [
        version(0, None, "w0"), step(1, 1), version(1, 1, "w1"), step(2, 2), version(2, 2, "w2"), step(3, 3), version(3, 3, "w3"),
        version(4, 3, "other", again_from=1, optimizer_sha256="moments", numerics={"threads": "2"}), step(4, 5), version(5, 4, "w4"),
    ]  # fmt: skip
    found = course(records)
    assert [outline(each) for each in found[3:]] == [(3, 3, "w3", 2, [3]), (3, 4, "other", 1, [2, 3]), (4, 5, "w4", 4, [4])]
    assert (found[4].optimizer_sha256, found[4].numerics) == ("moments", {"threads": "2"})
    assert in_force(found) == {0: 0, 1: 1, 2: 2, 3: 4, 4: 5}


def test_a_version_that_does_not_say_where_it_began_has_no_base() -> None:
    found = course([version(0, None, "w0"), step(1, 1), version(1, 1, "w1"), version(2, 1, "other"), step(2, 3)])
    assert [outline(each) for each in found[2:]] == [(1, 2, "other", None, []), (2, None, "w2", 2, [2])]


def test_a_log_without_version_0_is_refused() -> None:
    with pytest.raises(LogError, match="version 0 is not announced"):
        course([])


def compared(number: int, outcome: Outcome) -> Compared:
    return Compared(number, number, outcome, "expected")


@pytest.mark.parametrize(
    ("outcomes", "verdict"),
    [
        (["equal", "equal"], "equal"), (["unproven", "equal"], "equal"), (["unproven"], "unproven"), ([], "unproven"),
        (["equal", "not comparable", "follows", "different"], "not comparable"), (["equal", "different", "not comparable"], "different"),
    ],
)  # fmt: skip
def test_the_first_difference_decides(outcomes: list[Outcome], verdict: Outcome) -> None:
    assert Report(0, [compared(number, outcome) for number, outcome in enumerate(outcomes, 1)]).verdict == verdict


def test_steps_are_listed_in_runs() -> None:
    assert [runs_of(steps) for steps in ([], [4], [1, 2, 3, 7, 9, 10])] == ["", "4", "1-3, 7, 9-10"]
