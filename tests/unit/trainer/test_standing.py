"""What `training` says up to its end, record by record."""

from __future__ import annotations

from schemas.training import Consumed, Drops, Plan, Run, Step, WeightFile, WeightVersion
from trainer.recover import Standing


def step(number: int, weights: str, *, below: int) -> Step:
    plan = Plan(places=[], rows=[], micro_batches=[], mini_batches=[])
    return Step(
        step=number, version=number - 1, published=number, plan=plan, consumed=Consumed(groups_below=below), weights_sha256=weights,
        optimizer_sha256=f"moments of {weights}",
    )  # fmt: skip


def version(number: int, weights: str, **more: object) -> WeightVersion:
    files = [WeightFile(uri=f"{weights}.safetensors", sha256=weights, bytes=1)]
    return WeightVersion(version=number, files=files, weights_sha256=weights, tokenizer_sha256="", template_sha256="", **more)  # type: ignore[arg-type]


def stand(*records: Run | Step | Drops | WeightVersion) -> Standing:
    standing = Standing()
    for record in records:
        standing.apply(record)
    return standing


BEGUN = (Run(run="r", settings={}), version(0, "w0"), step(1, "w1", below=2), version(1, "w1", step=1))


def test_a_run_stands_at_its_last_step_and_version() -> None:
    standing = stand(*BEGUN)
    assert (standing.step, standing.version, standing.consumed.groups_below) == (1, 1, 2)
    assert (standing.run, standing.initial) == (BEGUN[0], BEGUN[1])
    assert (standing.in_force, standing.moments) == ({0: "w0", 1: "w1"}, {1: "moments of w1"})
    assert {number: [file.sha256 for file in files] for number, files in standing.files.items()} == {0: ["w0"], 1: ["w1"]}


def test_what_was_consumed_is_what_the_last_step_or_drops_say() -> None:
    assert stand(*BEGUN, Drops(consumed=Consumed(groups_below=5))).consumed.groups_below == 5


def test_weights_that_came_out_otherwise_are_in_force_with_their_optimizer_and_the_step_keeps_its_number() -> None:
    """The plans of steps 1 and 2, trained again on other hardware from version 0."""
    again = version(3, "other", step=2, again_from=0, optimizer_sha256="other moments")
    standing = stand(*BEGUN, step(2, "w2", below=3), version(2, "w2", step=2), again)
    assert (standing.step, standing.version) == (2, 3)
    assert standing.in_force == {0: "w0", 1: "w1", 2: "other"}
    assert standing.moments == {1: "moments of w1", 2: "other moments"}
    assert standing.initial == BEGUN[1]
