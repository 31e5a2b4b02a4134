"""The trainer's whole life on a broker in memory: it dies anywhere and comes back, wakes as a zombie, meets other hardware."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import anyio
import pytest

import trainer.loop
from schemas.errors import Superseded, UsageError
from schemas.node import NodeStatus
from schemas.topics import NODES
from schemas.training import Drops, Plan, Run, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.broker import Place
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Watch, supervise
from tests.unit.trainer.runs import (
    MEMBERS,
    Crash,
    Disk,
    PaperTrainee,
    after,
    decided,
    node_states,
    open_log,
    require_once,
    require_versions,
    run_trainer,
    start_trainer,
    trainer_settings,
    training,
    write_groups,
)
from trainer.attempts import FATAL, REASON
from trainer.service import role
from trainer.trainee import Trained

pytestmark = pytest.mark.anyio
DEADLINE_S = 60.0
PLACES = ("trainer.after_fetch", "trainer.after_update", "trainer.after_files", "trainer.after_commit")


def die_at(monkeypatch: pytest.MonkeyPatch, place: str, passes: int) -> None:
    """Die at the `passes`-th pass of a failpoint, and at no other."""
    count: Counter[str] = Counter()

    def pass_by(name: str) -> None:
        count[name] += 1
        if name == place and count[name] == passes:
            raise Crash

    monkeypatch.setattr(trainer.loop, "failpoint", pass_by)


async def run_until_death(log: Log, disk: Disk, **changes: object) -> bool:
    """Whether it died before its last step."""
    try:
        await run_trainer(log, trainer_settings(**changes), PaperTrainee(disk))
    except BaseExceptionGroup as group:
        crashes, others = group.split(Crash)
        if others is not None:
            raise others from group
        assert crashes is not None
        return True
    return False


async def steps_of(log: Log) -> list[Step]:
    return [each for each in await training(log) if isinstance(each, Step)]


async def require_chain(log: Log) -> None:
    """Every digest is that of the plans so far: recovery stood exactly where the log says."""
    weights = "initial"
    for step in await steps_of(log):
        weights = after(weights, step.plan)
        assert step.weights_sha256 == weights


async def test_a_run_from_its_first_record_to_its_last() -> None:
    log = await open_log()
    write_groups(log, 8)
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(), PaperTrainee(Disk()))
    records = await training(log)
    assert isinstance(records[0], Run)
    assert records[0].settings["steps"] == 4
    assert isinstance(records[1], WeightVersion)
    steps = [each for each in records if isinstance(each, Step)]
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [step.staleness for step in steps] == [0, 1, 2, 3]
    assert all(step.trained_tokens == 2 * MEMBERS * 3 for step in steps)
    assert steps[0].metrics["loss"] == 0.5
    assert steps[0].metrics["update_ms"] >= 0.0
    assert steps[0].numerics == {"salt": ""}
    require_once(records, groups=8)
    require_versions(records)
    await require_chain(log)


async def test_the_process_ends_by_itself_after_the_last_step() -> None:
    log = await open_log()
    write_groups(log, 2)
    with anyio.fail_after(20):
        await supervise(role(trainer_settings(steps=1), lambda _: PaperTrainee(Disk())), log, Watch())
    statuses = [each for each in await node_states(log) if isinstance(each, NodeStatus)]
    assert NODES.name == "nodes"
    assert statuses[0].state == "loading"
    assert (statuses[-1].state, statuses[-1].version, statuses[-1].tags) == ("left", 1, ["train"])
    assert len({status.incarnation for status in statuses}) == 1


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("recovery_s", [0.0, 1e9], ids=["checkpoints", "no checkpoint"])
async def test_killed_anywhere_it_trains_everything_once(
    monkeypatch: pytest.MonkeyPatch, place: str, passes: int, recovery_s: float
) -> None:
    log, disk = await open_log(), Disk()
    write_groups(log, 8)
    with anyio.fail_after(20):
        die_at(monkeypatch, place, passes)
        assert await run_until_death(log, disk, recovery_s=recovery_s)
        assert not await run_until_death(log, disk, recovery_s=recovery_s)
    records = await training(log)
    require_once(records, groups=8)
    require_versions(records)
    await require_chain(log)


async def live(log: Log, disk: Disk, groups: int, recovery_s: float) -> None:
    """One life, until it dies or every session of `groups` groups is decided."""
    async with anyio.create_task_group() as tasks:

        async def end_when_decided() -> None:
            while len(decided(await training(log))) < groups * MEMBERS:
                await anyio.sleep(0.02)
            tasks.cancel_scope.cancel()

        tasks.start_soon(end_when_decided)
        await run_until_death(log, disk, steps=100, recovery_s=recovery_s)
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("seed", range(8))
async def test_many_deaths_unknown_commits_and_late_sessions(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    print(f"seed {seed}")
    draw, log, disk, groups = Random(seed), await open_log(), Disk(), 0
    assert isinstance(log.broker, MemoryBroker)
    with anyio.fail_after(60):
        for _ in range(5):
            write_groups(log, 4, first=groups, signal=draw.random() < 0.8)
            groups += 4
            log.broker.commit_faults.extend(draw.choices([None, "answer lost", "write lost"], weights=[5, 1, 1], k=3))
            die_at(monkeypatch, draw.choice(PLACES), draw.randint(1, 2))
            await live(log, disk, groups, draw.choice([0.0, 1e9]))
        die_at(monkeypatch, "never", 1)
        await live(log, disk, groups, 1e9)
    records = await training(log)
    require_once(records, groups=groups)
    require_versions(records)
    await require_chain(log)


async def test_a_checkpoint_spares_the_steps_before_it() -> None:
    log, disk = await open_log(), Disk()
    write_groups(log, 8)
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(steps=3, recovery_s=0.0), PaperTrainee(disk))
        disk.calls.clear()
        disk.checkpoints = {step: weights for step, weights in disk.checkpoints.items() if step < 3} | {9: "never committed"}
        await run_trainer(log, trainer_settings(steps=4, recovery_s=1e9), PaperTrainee(disk))
    assert disk.calls == ["train"] * 2
    await require_chain(log)


async def test_what_was_trained_again_is_kept_so_that_the_next_one_need_not() -> None:
    log, disk = await open_log(), Disk()
    write_groups(log, 8)
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(steps=2), PaperTrainee(disk))
        assert disk.checkpoints == {}
        await run_trainer(log, trainer_settings(steps=2), PaperTrainee(disk))
    assert disk.checkpoints == {2: (await steps_of(log))[1].weights_sha256}


async def test_a_zombie_is_superseded() -> None:
    log, disk, asleep, awake = await open_log(), Disk(), threading.Event(), threading.Event()

    class Sleeper(PaperTrainee):
        def publish(self, version: int, step: int) -> WeightVersion:
            asleep.set()
            assert awake.wait(20)
            return super().publish(version, step)

    async def be_zombie() -> None:
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_trainer(log, trainer_settings(), Sleeper(disk))
        assert caught.group_contains(Superseded)

    write_groups(log, 8)
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(be_zombie)
            while not asleep.is_set():
                await anyio.sleep(0.01)
            await run_trainer(log, trainer_settings(), PaperTrainee(disk))
            awake.set()
    records = await training(log)
    require_once(records, groups=8)
    require_versions(records)


async def test_stops_in_one_step_give_up_no_batch_though_each_update_outlives_its_process() -> None:
    """The count is taken back while the update runs: SIGKILL may come before it is over."""
    log, disk, place = await open_log(), Disk(), Place("test.training", 0)
    write_groups(log, 8)
    for _ in range(FATAL + 1):
        has_begun, is_over = threading.Event(), threading.Event()

        class Busy(PaperTrainee):
            def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
                has_begun.set()  # noqa: B023
                assert is_over.wait(2 * DEADLINE_S)  # noqa: B023
                return super().train(plan, trajectories)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run_trainer, log, trainer_settings(), Busy(disk))
            assert await anyio.to_thread.run_sync(has_begun.wait, DEADLINE_S)
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True), anyio.move_on_after(DEADLINE_S) as limit:
                while (await log.broker.committed("test.trainer", [place]))[place] != (1, "0:0"):
                    await anyio.sleep(0.002)
            is_over.set()
        assert not limit.cancelled_caught
    await run_trainer(log, trainer_settings(), PaperTrainee(disk))
    assert all(drop.reason != REASON for each in await training(log) if isinstance(each, Step | Drops) for drop in each.drops)
    assert len(await steps_of(log)) == 4


async def test_other_hardware_goes_on_from_a_version_of_its_own() -> None:
    log, disk = await open_log(), Disk()
    write_groups(log, 8)
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(steps=2), PaperTrainee(disk))
        await run_trainer(log, trainer_settings(steps=3), PaperTrainee(disk, salt="other"))
    versions = [each for each in await training(log) if isinstance(each, WeightVersion)]
    assert [(each.version, each.step) for each in versions] == [(0, None), (1, 1), (2, 2), (3, 2), (4, 3)]
    steps = await steps_of(log)
    assert (steps[2].version, steps[2].published) == (3, 4)
    again = after(after("initial", steps[0].plan, "other"), steps[1].plan, "other")
    assert versions[3].weights_sha256 == again
    assert (versions[3].again_from, versions[3].numerics) == (0, {"salt": "other"})
    assert all(each.again_from is None and not each.numerics for each in versions if each.version != 3)
    assert steps[2].weights_sha256 == after(again, steps[2].plan, "other")
    with anyio.fail_after(20):  # the version of its own is in force: nothing new is announced
        await run_trainer(log, trainer_settings(steps=4), PaperTrainee(disk, salt="other"))
    assert [each.version for each in await training(log) if isinstance(each, WeightVersion)] == [0, 1, 2, 3, 4, 5]


async def test_equal_weights_with_another_optimizer_are_other_weights() -> None:
    """They would part at the next step."""

    class Moved(PaperTrainee):
        def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
            return replace(super().train(plan, trajectories), optimizer_sha256="moved")

    log, disk = await open_log(), Disk()
    write_groups(log, 8)
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(steps=2), PaperTrainee(disk))
        await run_trainer(log, trainer_settings(steps=2), Moved(disk))
        disk.checkpoints.clear()
        await run_trainer(log, trainer_settings(steps=2), Moved(disk))  # in force by now
    versions = [each for each in await training(log) if isinstance(each, WeightVersion)]
    found = [(each.version, each.step, each.optimizer_sha256) for each in versions]
    assert found == [(0, None, ""), (1, 1, ""), (2, 2, ""), (3, 2, "moved")]
    assert versions[3].weights_sha256 == versions[2].weights_sha256


async def test_a_run_keeps_the_arithmetic_that_it_began_with() -> None:
    log = await open_log()
    with anyio.fail_after(20):
        await run_trainer(log, trainer_settings(steps=0), PaperTrainee(Disk()))
        with pytest.raises(BaseExceptionGroup) as caught:
            await run_trainer(log, trainer_settings(steps=0, optimizer={"learning_rate": 1.0}), PaperTrainee(Disk()))
    assert caught.group_contains(UsageError, match=r"trainer\.optimizer is \{'learning_rate': 1\.0\}, the run began with \{\}")


async def test_drops_without_a_step_are_committed_by_themselves() -> None:
    log = await open_log()
    write_groups(log, 2, signal=False)
    async with anyio.create_task_group() as tasks:
        with anyio.fail_after(20):
            await tasks.start(start_trainer, log, trainer_settings(), PaperTrainee(Disk()))
            while not (found := [each for each in await training(log) if isinstance(each, Drops)]):
                await anyio.sleep(0.02)
        tasks.cancel_scope.cancel()
    assert [drop.reason for drop in found[0].drops] == ["no signal"] * 2 * MEMBERS
    assert sorted(group for each in found for group in each.groups) == [0, 1]


async def test_sessions_that_end_later_are_trained_after_a_restart() -> None:
    log, disk = await open_log(), Disk()
    with anyio.fail_after(20):
        write_groups(log, 3)
        await run_trainer(log, trainer_settings(steps=1), PaperTrainee(disk))
        write_groups(log, 1, first=3)
        await run_trainer(log, trainer_settings(steps=2), PaperTrainee(disk))
    require_once(await training(log), groups=4)
