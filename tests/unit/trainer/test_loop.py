"""The loop alone: what it does in which order, with a feed and a trainee that are scripted."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import anyio
import pytest

from schemas.deadletter import DeadLetter
from schemas.errors import BrokerUnavailable, CorruptRecord, LogError, Superseded
from schemas.record import Record
from schemas.topics import DEADLETTER, TRAINING, Topic
from schemas.training import Consumed, Drops, Place, Plan, Row, Step, WeightVersion
from schemas.trajectory import Trajectory
from streams.cas import open_cas
from streams.codec import Entry
from streams.log import Log
from streams.memory import MemoryBroker
from streams.service import Watch
from tests.unit.trainer.runs import Crash, Disk, PaperTrainee, open_log, training
from trainer import attempts as attempts_module
from trainer.attempts import FATAL, Attempts
from trainer.feed.plan import Batch
from trainer.loop import Loop
from trainer.recover import PARTITION, Standing
from trainer.trainee import Bench, Trained

pytestmark = pytest.mark.anyio


def batch(number: int, version: int = 0) -> Batch:
    plan = Plan(
        places=[Place(partition=0, offset=number, session=number)], micro_batches=[[0]], mini_batches=[[0]],
        rows=[Row(place=0, nodes=[0], stops=[3], train_from=[2], train_to=[3], advantage=1.0)],
    )  # fmt: skip
    return Batch(
        plan=plan, trajectories=[Trajectory(session=number, close=number)], drops=[], groups_trained=[number], groups_dropped=[9],
        consumed=Consumed(groups_below=number + 1), version=version, trained_tokens=1, staleness=2, reward_mean=0.25,
    )  # fmt: skip


@dataclass
class ScriptedFeed:
    """Hands out what it was given, and remembers from which versions it was asked."""

    decided: deque[Batch | Drops]
    last: list[Drops] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    async def next(self, version: int) -> Batch | Drops:
        self.versions.append(version)
        return self.decided.popleft()

    def rest(self) -> list[Drops]:
        return self.last


@dataclass
class SlowTrainee(PaperTrainee):
    """Takes a known time, and notes when what is called."""

    seen: list[str] = field(default_factory=list)

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        self.seen.append("train")
        return super().train(plan, trajectories)

    def publish(self, version: int, step: int) -> WeightVersion:
        self.seen.append(f"publish {version} of {step}")
        return super().publish(version, step)

    def keep(self, step: int, version: int, committed: Mapping[int, str]) -> None:
        assert committed[step] == self.weights, "a checkpoint is written of what stands in the log"
        self.seen.append(f"keep {step}")


async def run_loop(
    log: Log, feed: ScriptedFeed, trainee: SlowTrainee, *, steps: int, recovery_s: float = 1e9, attempts: Attempts | None = None,
    standing: Standing | None = None,
) -> Standing:
    """From version 0, which is announced unless it stands."""
    standing = standing or Standing()
    async with open_cas(log, TRAINING) as cas:
        initial = trainee.begin(None)
        if not cas.history:
            await cas.write([(PARTITION, initial)])
        standing.apply(initial)
        with anyio.fail_after(20):
            await Loop(feed, trainee, Bench(), cas, Watch(), standing, attempts or Attempts(log), recovery_s).run(steps)
    return standing


async def test_a_step_and_its_version_stand_in_one_transaction() -> None:
    log, feed, trainee = await open_log(), ScriptedFeed(deque([batch(0), batch(1, 1)])), SlowTrainee(Disk())
    standing = await run_loop(log, feed, trainee, steps=2)
    assert trainee.seen == ["train", "publish 1 of 1", "train", "publish 2 of 2"]
    assert feed.versions == [0, 1]
    async with log.follow_all(TRAINING) as reader:
        _, step, version, *_ = await reader.read_to_end([0])
    assert step.nonce == version.nonce
    assert isinstance(step.record, Step)
    assert (step.record.step, step.record.version, step.record.published, step.record.staleness) == (1, 0, 1, 2)
    assert (step.record.groups_trained, step.record.groups_dropped, step.record.metrics["reward_mean"]) == ([0], [9], 0.25)
    assert isinstance(version.record, WeightVersion)
    assert version.record.weights_sha256 == step.record.weights_sha256
    assert (standing.step, standing.version, standing.consumed) == (2, 2, Consumed(groups_below=2))


async def test_drops_are_committed_alone_and_the_last_ones_at_the_end() -> None:
    early, late = Drops(groups=[5], consumed=Consumed(groups_below=1)), Drops(groups=[6], consumed=Consumed(groups_below=2))
    log, feed = await open_log(), ScriptedFeed(deque([early, batch(0)]), last=[late])
    standing = await run_loop(log, feed, SlowTrainee(Disk()), steps=1)
    assert [type(each).__name__ for each in await training(log)] == ["WeightVersion", "Drops", "Step", "WeightVersion", "Drops"]
    assert standing.consumed == late.consumed


@pytest.mark.parametrize(("recovery_s", "kept"), [(0.0, ["keep 1", "keep 2"]), (1e9, [])])
async def test_checkpoints_follow_the_budget(recovery_s: float, kept: list[str]) -> None:
    log, feed, trainee = await open_log(), ScriptedFeed(deque([batch(0), batch(1, 1)])), SlowTrainee(Disk())
    await run_loop(log, feed, trainee, steps=2, recovery_s=recovery_s)
    assert [each for each in trainee.seen if each.startswith("keep")] == kept


async def test_a_loop_that_lost_the_check_ends_and_keeps_nothing() -> None:
    log = await open_log()

    class Intruded(SlowTrainee):
        def publish(self, version: int, step: int) -> WeightVersion:
            anyio.from_thread.run(intrude)
            return super().publish(version, step)

    async def intrude() -> None:
        async with open_cas(log, TRAINING) as other:
            await other.write([(PARTITION, Drops(groups=[1], consumed=Consumed()))])

    trainee = Intruded(Disk())
    with pytest.raises(Superseded):
        await run_loop(log, ScriptedFeed(deque([batch(0)])), trainee, steps=1, recovery_s=0.0)
    assert trainee.seen == ["train", "publish 1 of 1"]
    assert [type(each).__name__ for each in await training(log)] == ["WeightVersion", "Drops"]


async def test_a_batch_that_ends_its_trainers_is_dropped_with_its_letters_and_the_next_one_trains() -> None:
    """Each trainer is a new loop: only the log remembers."""
    log = await open_log()

    class Fragile(SlowTrainee):
        def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
            if trajectories[0].session == 5:
                raise IndexError("token 99 of 32")
            return super().train(plan, trajectories)

    for _ in range(FATAL):
        with pytest.raises(IndexError):
            await run_loop(log, ScriptedFeed(deque([batch(5)])), Fragile(Disk()), steps=1, attempts=Attempts(log))
    standing = await run_loop(log, ScriptedFeed(deque([batch(5), batch(6)])), Fragile(Disk()), steps=1, attempts=Attempts(log))
    assert (standing.step, standing.version) == (1, 1)
    _, drops, step, _ = await training(log)
    assert isinstance(drops, Drops)
    assert [(drop.place.session, drop.reason) for drop in drops.drops] == [(5, "poison")]
    assert (sorted(drops.groups), drops.consumed) == ([5, 9], Consumed(groups_below=6))
    assert isinstance(step, Step)
    assert [place.session for place in step.plan.places] == [6]
    (letter,) = [entry.record for entry in await everything(log, DEADLETTER)]
    assert isinstance(letter, DeadLetter)
    assert (letter.topic, letter.partition, letter.offset) == ("trajectories", 0, 5)
    assert letter.reason.startswith("poison: 4 trainers ended")


async def test_a_count_belongs_to_the_step_and_to_the_batches_given_up_for_it() -> None:
    log = await open_log()
    beginnings = [(1, 0), (1, 0), (2, 0), (2, 0), (2, 1), (2, 1)]
    assert [await Attempts(log).begin(*beginning) for beginning in beginnings] == [0, 1, 0, 1, 0, 1]


async def test_a_death_right_after_a_batch_was_given_up_leaves_the_next_one_its_own_count() -> None:
    log = await open_log()

    class Broken(SlowTrainee):
        def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
            raise IndexError("this batch kills")

    class Dies(Attempts):
        async def end(self, end: BaseException | None) -> None:
            raise Crash

    for _ in range(FATAL):
        with pytest.raises(IndexError):
            await run_loop(log, ScriptedFeed(deque([batch(5)])), Broken(Disk()), steps=1, attempts=Attempts(log))
    with pytest.raises(Crash):
        await run_loop(log, ScriptedFeed(deque([batch(5)])), Broken(Disk()), steps=1, attempts=Dies(log))
    standing, trained = fold_of(await training(log)), ScriptedFeed(deque([batch(6), batch(7)]))
    assert (standing.step, standing.given_up) == (0, 1)
    await run_loop(log, trained, SlowTrainee(Disk()), steps=1, attempts=Attempts(log), standing=standing)
    *_, drops, step, _ = await training(log)
    assert isinstance(drops, Drops)
    assert isinstance(step, Step)
    assert [place.session for place in step.plan.places] == [6]


def fold_of(records: Sequence[Record]) -> Standing:
    standing = Standing()
    for record in records:
        standing.apply(record)
    return standing


class Held(SlowTrainee):
    """Trains until it is let go."""

    def __init__(self) -> None:
        super().__init__(Disk())
        self.has_begun, self.may_go_on = threading.Event(), threading.Event()

    def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
        self.has_begun.set()
        assert self.may_go_on.wait(60)
        return super().train(plan, trajectories)


async def before(log: Log) -> int:
    """How many beginnings of the first step stand."""
    return await Attempts(log).begin(1, 0)


@pytest.mark.parametrize(("late", "stands"), [("", 0), ("the update of step 1", 1)])
async def test_a_stop_takes_the_beginning_back_while_the_update_runs_but_not_where_that_was_late(late: str, stands: int) -> None:
    log, trainee = await open_log(), Held()
    watch = Watch()
    attempts = Attempts(log, watch)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(attempts.take_back_when_stopped)
        tasks.start_soon(partial(run_loop, log, ScriptedFeed(deque([batch(5)])), trainee, steps=1, attempts=attempts))
        assert await anyio.to_thread.run_sync(trainee.has_begun.wait, 60)
        watch.late = late
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True), anyio.fail_after(60):
            while await committed_count(log) != stands:
                await anyio.sleep(0.002)
            assert not trainee.may_go_on.is_set()
            trainee.may_go_on.set()
    assert await before(log) == stands


async def committed_count(log: Log) -> int:
    place = log.place(TRAINING, 0)
    _, metadata = (await log.broker.committed(log.group("trainer"), [place]))[place]
    return int(metadata.partition(":")[2])


@pytest.mark.parametrize(
    ("end", "stands"),
    [
        (BrokerUnavailable("away"), 0), (Superseded("another one"), 0), (OSError(28, "no space left"), 0),
        (CorruptRecord("plan and trajectories"), 1), (IndexError("token 99"), 1), (Crash(), 1),
    ],
)  # fmt: skip
async def test_only_an_end_that_the_batch_may_have_caused_counts(end: BaseException, stands: int) -> None:
    log = await open_log()

    class Ends(SlowTrainee):
        def train(self, plan: Plan, trajectories: Sequence[Trajectory]) -> Trained:
            raise end

    for _ in range(2):
        with pytest.raises(type(end)):
            await run_loop(log, ScriptedFeed(deque([batch(5)])), Ends(Disk()), steps=1)
    assert await before(log) == 2 * stands


async def test_a_commit_that_was_late_is_no_fault_of_the_batch() -> None:
    log, watch = await open_log(), Watch()

    class Away(Attempts):
        def through(self) -> None:
            super().through()
            watch.late = "a commit to training"
            raise BrokerUnavailable("away")

    with pytest.raises(BrokerUnavailable):
        await run_loop(log, ScriptedFeed(deque([batch(5)])), SlowTrainee(Disk()), steps=1, attempts=Away(log, watch))
    assert await before(log) == 0


async def test_a_beginning_that_was_never_written_is_not_taken_back_from_those_that_were(monkeypatch: pytest.MonkeyPatch) -> None:
    log = await open_log()
    attempts = Attempts(log)
    assert await before(log) == 0  # a death
    with monkeypatch.context() as patch:
        patch.setattr(attempts_module, "TRIES", 0)
        patch.setattr(MemoryBroker, "commit", _away)
        with pytest.raises(BrokerUnavailable):
            await attempts.begin(1, 0)
    await attempts.end(BrokerUnavailable("away"))
    assert await before(log) == 1


async def _away(self: MemoryBroker, group: str, offsets: object) -> None:
    raise BrokerUnavailable("away")


async def test_what_another_trainer_counted_meanwhile_is_not_taken_back() -> None:
    log = await open_log()
    zombie, successor = Attempts(log), Attempts(log)
    assert [await zombie.begin(1, 0), await successor.begin(1, 0)] == [0, 1]
    await zombie.end(Superseded("another one"))
    assert await before(log) == 1


async def everything(log: Log, topic: Topic) -> list[Entry[Record]]:
    async with log.follow_all(topic) as reader:
        return await reader.read_to_end([0])


class AheadFeed(ScriptedFeed):
    """Holds tokens of a version that this trainer has not made."""

    async def next(self, version: int) -> Batch | Drops:
        raise LogError("tokens of version 7")


@pytest.mark.parametrize(("other_wrote", "error"), [(True, Superseded), (False, LogError)])
async def test_tokens_of_an_unknown_version_are_a_successors_work_or_an_error(other_wrote: bool, error: type[Exception]) -> None:
    log = await open_log()
    async with open_cas(log, TRAINING) as zombie:
        if other_wrote:
            async with open_cas(log, TRAINING) as successor:
                await successor.write([(PARTITION, Drops(consumed=Consumed()))])
        loop = Loop(AheadFeed(deque()), SlowTrainee(Disk()), Bench(), zombie, Watch(), Standing(version=0), Attempts(log), recovery_s=1e9)
        with pytest.raises(error):
            await loop.run(1)
