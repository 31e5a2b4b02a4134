"""Weights made again from the log: equal, different, by other numerics, and where the log has expired. Real torch, a broker in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import anyio
import pytest
from rich.console import Console

from infra.audit.course import course
from infra.audit.proof import Asked, Compared, Report
from infra.audit.recompute import Recomputation, recompute_log
from infra.audit.recompute_command import EXIT_CODES, show
from models.chat import CharacterChat
from models.config import Qwen2Config
from models.qwen2 import Qwen2, initial
from models.weights import fetch
from schemas.errors import EngineError, LogError, UsageError
from schemas.topics import TRAJECTORIES
from schemas.training import Place, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.log import Log
from streams.memory import MemoryBroker
from tests.unit.trainer.runs import groups_of_records, open_log, run_trainer, trainer_settings, training, write_groups
from trainer.initial import write_model
from trainer.layout import LayoutSettings, lay_out
from trainer.learning import Arithmetic, TorchTrainee
from trainer.numerics import settle
from trainer.paths import paths_of
from trainer.settings import TrainerSettings
from trainer.trainee import Bench
from workers.rollout.engines.torch import torch_engine

pytestmark = [pytest.mark.anyio, pytest.mark.torch]

CONFIG = Qwen2Config(vocab_size=58, hidden_size=32, intermediate_size=48, num_key_value_heads=2, initializer_range=0.2)
GROUPS = 8
NEVER = 1e9


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    yield
    settle()


def settings_in(root: Path, **changes: object) -> TrainerSettings:
    if not (root / "model").exists():
        write_model(root / "model", initial(CONFIG, seed=3), CharacterChat())
    folders = {"model_dir": root / "model", "weights_dir": root / "weights", "checkpoint_dir": root / "checkpoints"}
    return trainer_settings(**{"recovery_s": NEVER, **folders, **changes})


async def train(log: Log, settings: TrainerSettings) -> None:
    with anyio.fail_after(60):
        await run_trainer(log, settings, TorchTrainee(settings))


async def filled() -> Log:
    """Sessions of uneven length: with these, and no others that were tried, two threads sum in another order than one."""
    opened = await open_log()
    write_groups(opened, GROUPS, uneven=7)
    return opened


@pytest.fixture
async def log() -> Log:
    return await filled()


@cache
def threads_matter() -> bool:
    """Whether the number of threads changes a bit in one step on such sessions."""
    found = [each for _, _, each in groups_of_records(2, uneven=7) if isinstance(each, Trajectory)][::2]
    places = [Place(partition=0, offset=index, session=each.session) for index, each in enumerate(found)]
    plan = lay_out(places, [path.row(index, 1.0) for index, each in enumerate(found) for path in paths_of(each)], LayoutSettings())
    made = set()
    for threads in (1, 2):
        settle(threads)
        made.add(Arithmetic(initial(CONFIG, seed=3), trainer_settings(threads=threads)).train(plan, found).weights_sha256)
    return len(made) == 2


@pytest.fixture
def _threads_matter() -> None:
    if not threads_matter():
        pytest.skip("one thread and two give the same bits on this CPU")


async def recomputed(log: Log, asked: Asked | None = None) -> Report:
    told: list[int] = []
    with anyio.fail_after(60):
        report = await recompute_log(log, asked or Asked(), lambda each, _: told.append(each.step))
    assert told == [each.step for each in report.compared]
    return report


def outcomes(report: Report) -> list[tuple[int, int | None, str]]:
    return [(each.step, each.version, each.outcome) for each in report.compared]


async def versions_of(log: Log) -> list[WeightVersion]:
    return [each for each in await training(log) if isinstance(each, WeightVersion)]


async def test_every_version_is_made_again_to_the_same_bits(log: Log, tmp_path: Path) -> None:
    await train(log, settings_in(tmp_path, steps=2))
    await train(log, settings_in(tmp_path, steps=4))
    report = await recomputed(log)
    assert outcomes(report) == [(step, step, "equal") for step in (1, 2, 3, 4)]
    assert (report.start, report.verdict, report.as_json()["versions_equal"]) == (0, "equal", 4)
    assert [each.found_sha256 for each in report.compared] == [each.weights_sha256 for each in (await versions_of(log))[1:]]


async def test_a_range_begins_at_the_checkpoint_before_it(log: Log, tmp_path: Path) -> None:
    await train(log, settings_in(tmp_path, steps=2, recovery_s=0.0))
    await train(log, settings_in(tmp_path, steps=4))
    report = await recomputed(log, Asked(first=3, last=3))
    assert (report.start, outcomes(report)) == (2, [(3, 3, "equal")])
    elsewhere = await recomputed(log, Asked(first=3, checkpoints=tmp_path / "none"))
    assert (elsewhere.start, len(elsewhere.compared)) == (0, 4)
    for asked in (Asked(first=5), Asked(first=3, last=2), Asked(last=9)):
        with pytest.raises(UsageError, match="the log has steps 1 to 4"):
            await recomputed(log, asked)


@pytest.mark.usefixtures("_threads_matter")
async def test_another_thread_count_goes_on_from_a_version_of_its_own(log: Log, tmp_path: Path) -> None:
    """Two threads sum in another order than one: other bits, written down, loaded by workers, and made again by an auditor."""
    await train(log, settings_in(tmp_path, steps=2, threads=1))
    await train(log, settings_in(tmp_path, steps=4, threads=2))
    versions, steps = await versions_of(log), [each for each in await training(log) if isinstance(each, Step)]
    assert [(each.version, each.step) for each in versions] == [(0, None), (1, 1), (2, 2), (3, 2), (4, 3), (5, 4)]
    assert versions[3].weights_sha256 != versions[2].weights_sha256
    assert (versions[3].again_from, versions[3].numerics["threads"]) == (0, "2")
    assert [step.numerics["threads"] for step in steps] == ["1", "1", "2", "2"]
    assert [(step.version, step.published) for step in steps] == [(0, 1), (1, 2), (3, 4), (4, 5)]
    assert [step.staleness for step in steps] == [0, 1, 3, 4]  # all tokens are of version 0
    async with torch_engine(tmp_path / "model", batch=2) as engine:
        for version in versions:
            await engine.load(version)
            assert engine.version == version.version
    report = await recomputed(log)
    assert outcomes(report) == [(1, 1, "equal"), (2, 2, "equal"), (2, 3, "equal"), (3, 4, "equal"), (4, 5, "equal")]


@pytest.mark.usefixtures("_threads_matter")
async def test_other_threads_than_the_log_names_are_not_comparable(log: Log, tmp_path: Path) -> None:
    await train(log, settings_in(tmp_path, threads=1))
    report = await recomputed(log, Asked(threads=2))
    assert [each.outcome for each in report.compared] == ["not comparable", "follows", "follows", "follows"]
    found = report.first_difference
    assert found is not None
    assert found.numerics == {"threads": ("1", "2")}
    assert found.max_difference is not None
    assert 0.0 < found.max_difference < 1e-2
    assert EXIT_CODES[report.verdict] == 3
    text = shown(report)
    assert "cannot be compared bit for bit from step 1 on: threads 1 there, 2 here" in text
    assert "0 of 4" in text


@pytest.mark.usefixtures("_threads_matter")
async def test_the_distance_is_the_largest_one_to_the_published_weights(log: Log, tmp_path: Path) -> None:
    """Recomputed by hand: one step from version 0 with two threads, and a fetch."""
    await train(log, settings_in(tmp_path, steps=1, threads=1))
    report = await recomputed(log, Asked(threads=2))
    again = await filled()
    await train(again, settings_in(tmp_path / "two", steps=1, threads=2))
    theirs, ours = fetch((await versions_of(log))[1]), fetch((await versions_of(again))[1])
    distance = max(float((theirs[name] - ours[name]).abs().max()) for name in theirs)
    assert report.compared[0].max_difference == pytest.approx(distance)
    file_of((await versions_of(log))[1]).unlink()
    report = await recomputed(log, Asked(threads=2))
    assert (report.verdict, report.compared[0].max_difference) == ("not comparable", None)


def file_of(version: WeightVersion) -> Path:
    [file] = version.files
    return Path(file.uri.removeprefix("file://"))


def spoil(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


async def run_changed(log: Log, settings: TrainerSettings, change: dict[int, str]) -> Report:
    """A log that says other digests of weights, by index in the course."""
    made = [replace(each, weights_sha256=change.get(index, each.weights_sha256)) for index, each in enumerate(course(await training(log)))]
    arithmetic = Arithmetic(Qwen2(CONFIG), settings)
    run = Recomputation(log, Bench(), arithmetic, made, settings.checkpoint_dir)
    return Report(await run.begin(1), [each async for each in run.run(4)])


async def test_other_weights_under_the_same_numerics_are_different(log: Log, tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    await train(log, settings)
    report = await run_changed(log, settings, {2: "0" * 64})
    assert [each.outcome for each in report.compared] == ["equal", "different", "equal", "equal"]
    assert (report.verdict, EXIT_CODES[report.verdict]) == ("different", 1)
    assert "DIFFERENT: step 2 gives another weights digest under the same numerics" in shown(report)


@pytest.mark.usefixtures("_threads_matter")
async def test_what_follows_a_difference_accuses_nobody(log: Log, tmp_path: Path) -> None:
    """A learner that is not where the log says is pulled back by the first checkpoint."""
    settings = settings_in(tmp_path, steps=3, recovery_s=0.0, checkpoints_kept=1)
    await train(log, settings)
    await train(log, settings_in(tmp_path, steps=4))
    report = await recomputed(log, Asked(threads=2))
    assert [each.outcome for each in report.compared[:3]] == ["not comparable", "follows", "follows"]
    assert report.compared[3].outcome in ("not comparable", "equal")  # by itself, a step may come to the same bits


async def test_files_of_version_0_that_are_not_the_logs_end_it(log: Log, tmp_path: Path) -> None:
    await train(log, settings_in(tmp_path, steps=1))
    spoil(file_of((await versions_of(log))[0]))
    with pytest.raises(EngineError, match="has digest"):
        await recomputed(log)


async def test_a_checkpoint_with_another_optimizer_than_the_logs_is_not_used(log: Log, tmp_path: Path) -> None:
    settings = settings_in(tmp_path, steps=2, recovery_s=0.0)
    await train(log, settings)
    made = course(await training(log))
    for change, start in ({}, 1), ({1: "0" * 64}, 0):
        changed = [replace(each, optimizer_sha256=change.get(index, each.optimizer_sha256)) for index, each in enumerate(made)]
        run = Recomputation(log, Bench(), Arithmetic(Qwen2(CONFIG), settings), changed, settings.checkpoint_dir)
        assert await run.begin(2) == start


def expire(log: Log, step: Step) -> None:
    """Retention takes everything up to the trajectories of `step`."""
    assert isinstance(log.broker, MemoryBroker)
    for place in step.plan.places:
        log.broker.truncate(log.place(TRAJECTORIES, place.partition), place.offset + 1)


@pytest.mark.parametrize(
    ("kept", "expected"),
    [([], ["unproven"] * 4), ([1], ["unproven"] * 4), ([3], ["unproven", "unproven", "unproven", "equal"]),
     ([2, 3], ["unproven", "unproven", "equal", "equal"])],
)  # fmt: skip
async def test_expired_trajectories_are_said_to_be_expired(log: Log, tmp_path: Path, kept: list[int], expected: list[str]) -> None:
    await train(log, settings_in(tmp_path, recovery_s=0.0, checkpoints_kept=9))
    for folder in (tmp_path / "checkpoints").iterdir():
        if int(folder.name.split("-")[1]) not in kept:
            (folder / "state.json").unlink()
    steps = [each for each in await training(log) if isinstance(each, Step)]
    expire(log, steps[1])
    report = await recomputed(log)
    assert [each.outcome for each in report.compared] == expected
    unproven = [step for step, outcome in enumerate(expected, 1) if outcome == "unproven"]
    assert (report.unproven(), report.unproven(3)) == (unproven, [step for step in unproven if step >= 3])
    assert report.verdict == ("equal" if "equal" in expected else "unproven")
    assert (f"1-{unproven[-1]}: trajectories, or what to start from, are gone") in shown(report)


async def test_a_log_without_a_run_is_said_to_be_one() -> None:
    with pytest.raises(LogError, match="no trainer has begun a run"):
        await recomputed(await open_log())


def test_an_optimizer_alone_that_differs_is_named() -> None:
    found = Compared(3, None, "different", "a" * 64, "b" * 64, what="optimizer")
    said = shown(Report(0, [found]))
    assert "step 3, not published" in said
    assert "digests, optimizer" in said
    assert "none in the weights" in said
    assert "DIFFERENT: step 3 gives another optimizer digest under the same numerics" in said


def shown(report: Report) -> str:
    screen = Console(file=io.StringIO(), width=200)
    show(report, screen)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    return text
