"""The feed against a naive reading of R6: any order of reading, doubles, redelivery, crashes at any place."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import LogError, UsageError
from schemas.score import Score
from schemas.task import Task
from schemas.training import Consumed, Dropped, Drops, Plan, Watermark
from schemas.trajectory import Trajectory
from tests.unit.trainer.feed.logs import RULE, Event, Logs, random_logs, reading, score, session
from tests.unit.trainer.trees import node
from trainer.feed.decisions import DROPS_PER_RECORD
from trainer.feed.feed import Feed
from trainer.feed.plan import Batch
from trainer.feed.settings import FeedSettings

NEVER = 1e9
VERSION = 2


def feed_settings(**changes: object) -> FeedSettings:
    return FeedSettings.model_validate({"rules": {RULE: 1.0}, "groups_per_step": 2, "group_deadline_s": 10.0, **changes})


def unique(logs: Logs, partition: int) -> dict[int, Trajectory]:
    """Trajectories by offset without duplicates: those whose Close is above all before."""
    greatest, found = -1, {}
    for offset, trajectory in enumerate(logs.trajectories[partition]):
        if trajectory.close > greatest:
            greatest, found[offset] = trajectory.close, trajectory
    return found


def training_sessions(logs: Logs) -> dict[tuple[int, int], Trajectory]:
    return {
        (partition, offset): each
        for partition in range(len(logs.trajectories)) for offset, each in unique(logs, partition).items() if each.purpose == "train"
    }  # fmt: skip


@dataclass
class Written:
    """The records of `training`, as far as the feed decides them, and what they add up to."""

    logs: Logs
    records: list[Batch | Drops] = field(default_factory=list)
    trained: list[tuple[int, int]] = field(default_factory=list)
    dropped: dict[tuple[int, int], Dropped] = field(default_factory=dict)
    groups: Counter[int] = field(default_factory=Counter)

    @property
    def consumed(self) -> Consumed:
        return self.records[-1].consumed if self.records else Consumed()

    def add(self, record: Batch | Drops) -> None:
        self.records.append(record)
        if isinstance(record, Batch):
            self.trained += [(place.partition, place.offset) for place in record.plan.places]
            self.groups.update(record.groups_trained + record.groups_dropped)
        else:
            self.groups.update(record.groups)
        for drop in record.drops:
            key = (drop.place.partition, drop.place.offset)
            assert key not in self.dropped
            self.dropped[key] = drop
        self.require_true(record.consumed)

    def require_true(self, consumed: Consumed) -> None:
        """Consumed by its definition in `schemas.training`."""
        decided = {*self.trained, *self.dropped}
        for mark in consumed.watermarks:
            log = self.logs.trajectories[mark.partition]
            sessions = {key for key in training_sessions(self.logs) if key[0] == mark.partition}
            open_ones = {offset for _, offset in sessions - decided}
            assert all(offset >= mark.trajectory for offset in open_ones)
            assert not open_ones & set(mark.decided)
            above = {offset for partition, offset in decided if partition == mark.partition and offset >= mark.trajectory}
            assert above <= set(mark.decided)
            assert mark.close == max((each.close for each in log[: mark.trajectory]), default=-1)
            assert all(each.trajectory not in open_ones for each in self.logs.scores[mark.partition][: mark.score])
        for group in self.groups:
            assert group < consumed.groups_below or group in consumed.groups
        for partition, offset in consumed.tasks.items():
            for task in self.logs.tasks[partition][:offset]:
                assert task.group < consumed.groups_below or task.group in consumed.groups

    def require_complete(self) -> None:
        """At rest every ended training session is in exactly one record, every (group, member) and every group at most once."""
        sessions = training_sessions(self.logs)
        assert sorted([*self.trained, *self.dropped]) == sorted(sessions)
        members = Counter((sessions[key].group, sessions[key].member) for key in self.trained if sessions[key].group is not None)
        assert max(members.values(), default=1) == 1
        groups = {task.group for log in self.logs.tasks for task in log if task.purpose == "train"}
        assert self.groups == Counter(dict.fromkeys(groups, 1))
        for key in self.trained:
            assert not sessions[key].is_empty
            assert ok_answers(self.logs, key)


def ok_answers(logs: Logs, key: tuple[int, int]) -> list[float]:
    return [each.value for each in logs.scores[key[0]] if each.trajectory == key[1] and each.status == "ok"]


def run(draw: Random, written: Written, wanted: FeedSettings) -> None:
    """One life of a feed from the last record, with decisions in between; it may die before a decision is written."""
    feed = Feed(wanted, written.consumed)
    now = 0.0
    for event in reading(draw, written.logs, written.consumed):
        feed.take(*event[1:], now)
        now += draw.random()
        if draw.random() < 0.3:
            feed.expire(now)
        if draw.random() < 0.3:
            record = feed.batch(VERSION, now) or feed.drops(now)
            if draw.random() < 0.1:
                return
            if record is not None:
                written.add(record)
    while feed.has_batch and (batch := feed.batch(VERSION, now)):
        written.add(batch)


def settle(written: Written, wanted: FeedSettings) -> None:
    """A last life without faults, until nothing is left: single groups, deadlines passed."""
    alone = wanted.model_copy(update={"groups_per_step": 1})
    feed = Feed(alone, written.consumed)
    for event in reading(Random(0), written.logs, written.consumed):
        feed.take(*event[1:], 0.0)
    feed.expire(NEVER)
    while batch := feed.batch(VERSION, 0.0):
        written.add(batch)
    while drops := feed.drops(0.0, at_once=True):
        written.add(drops)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["drop", "train"]), st.sampled_from(["drop", "mask"]))
def test_every_session_and_group_is_decided_once_through_any_crash(seed: int, incomplete: str, stale: str) -> None:
    draw = Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer.feed.decisions.DROPS_PER_RECORD", draw.choice([1, 2, DROPS_PER_RECORD]))
        _decide_through_crashes(draw, incomplete, stale)


def _decide_through_crashes(draw: Random, incomplete: str, stale: str) -> None:
    wanted = feed_settings(incomplete=incomplete, stale=stale, staleness_bound=1, drops_deadline_s=2.0)
    written = Written(random_logs(draw))
    for _ in range(draw.randint(1, 4)):
        run(draw, written, wanted)
    settle(written, wanted)
    written.require_complete()


def verdicts(events: list[Event]) -> dict[tuple[int, int], tuple[int, float | None]]:
    """When each trajectory was both read and answered, and its reward: the first `ok` answer read by then, None if there was none."""
    read = {(p, o): at for at, (topic, p, o, _) in reversed(list(enumerate(events))) if topic == "trajectories"}
    found: dict[tuple[int, int], tuple[int, float | None]] = {}
    for key, read_at in read.items():
        answers = [(at, each[3]) for at, each in enumerate(events) if isinstance(each[3], Score) and (each[1], each[3].trajectory) == key]
        if answers:
            verdict_at = max(read_at, answers[0][0])
            found[key] = (verdict_at, next((each.value for at, each in answers if at <= verdict_at and each.status == "ok"), None))
    return found


def naive_outcome(logs: Logs, events: list[Event]) -> dict[tuple[int, int], str]:
    """What becomes of each session that is read in this order, without any deadline: all of R6 anew for every session."""
    sessions, scored = training_sessions(logs), verdicts(events)
    read_at = {(p, o): at for at, (topic, p, o, _) in reversed(list(enumerate(events))) if topic == "trajectories"}
    usable = {key: scored[key] for key, each in sessions.items() if not each.is_empty and key in scored and scored[key][1] is not None}
    outcome = {key: "empty" if each.is_empty else "open" for key, each in sessions.items()}
    outcome |= {key: "failed score" for key in outcome if outcome[key] == "open" and key in scored and key not in usable}
    for group, (members, known_at) in _groups(logs, events, sessions).items():
        of_group = [key for key in sessions if (sessions[key].group if sessions[key].group is not None else key) == group]
        first: dict[int | None, tuple[int, int]] = {}
        for key in sorted((key for key in of_group if key in usable), key=lambda key: usable[key][0]):
            first.setdefault(sessions[key].member, key)
        if len(first) < members:
            continue
        closed_at = max(known_at, *(usable[key][0] for key in first.values()))
        rewards = [usable[key][1] for key in first.values()]
        signal = len(set(rewards)) > 1 if isinstance(group, int) else rewards != [0.5]
        for key in of_group:
            ended_at = scored[key][0] if outcome[key] == "failed score" else read_at[key]
            if key in first.values():
                outcome[key] = "trained" if signal else "no signal"
            elif outcome[key] == "open" or ended_at > closed_at:
                outcome[key] = "late"
    return outcome


def _groups(
    logs: Logs, events: list[Event], sessions: dict[tuple[int, int], Trajectory]
) -> dict[int | tuple[int, int], tuple[int, int]]:
    """Group → members, and when that was read."""
    found: dict[int | tuple[int, int], tuple[int, int]] = {key: (1, 0) for key in sessions if sessions[key].group is None}
    for at, (_, _, _, record) in reversed(list(enumerate(events))):
        if isinstance(record, Task) and record.purpose == "train":
            found[record.group] = (record.members, at)
    return found


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_an_undisturbed_feed_decides_as_the_rules_say(seed: int) -> None:
    draw = Random(seed)
    logs = random_logs(draw)
    events = list(reading(draw, logs, Consumed()))
    feed, written = Feed(feed_settings(groups_per_step=1, staleness_bound=9), Consumed()), Written(logs)
    for event in events:
        feed.take(*event[1:], 0.0)
    while batch := feed.batch(VERSION, 0.0):
        written.add(batch)
    if drops := feed.drops(0.0, at_once=True):
        written.add(drops)
    found = dict.fromkeys(training_sessions(logs), "open")
    found |= dict.fromkeys(written.trained, "trained")
    found |= {key: "late" if drop.reason == "group decided" else drop.reason for key, drop in written.dropped.items()}
    expected = naive_outcome(logs, events)
    assert found == expected


def small_feed(**changes: object) -> Feed:
    """Group 0 of two members, group 1 of two."""
    feed = Feed(feed_settings(groups_per_step=1, **changes), Consumed())
    for number in range(4):
        feed.take_task(0, number, Task(number=number, group=number // 2, member=number % 2, members=2), 0.0)
    return feed


def give(feed: Feed, offset: int, trajectory: Trajectory, value: float | None = None, now: float = 0.0) -> None:
    feed.take_trajectory(0, offset, trajectory, now)
    if value is not None:
        feed.take_score(0, offset, score(offset, value), now)


def test_a_batch_says_what_it_trains_and_what_was_read() -> None:
    feed = small_feed()
    give(feed, 0, session(5, 7, group=0, member=1, version=1), 1.0)
    give(feed, 1, session(6, 9, group=1, member=0))
    give(feed, 2, session(8, 11, group=0, member=0, version=2), 0.0)
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert [(place.offset, place.session) for place in batch.plan.places] == [(0, 5), (2, 8)]
    assert [row.advantage for row in batch.plan.rows] == pytest.approx([0.5 / 0.70720678, -0.5 / 0.70720678])
    assert (batch.trained_tokens, batch.staleness, batch.groups_trained, batch.drops) == (4, 1, [0], [])
    assert batch.consumed == Consumed(
        watermarks=[Watermark(partition=0, trajectory=1, close=7, decided=[2], score=3)], groups_below=1, tasks={0: 2}
    )
    assert [each.session for each in batch.trajectories] == [5, 8]


def test_a_group_of_which_nothing_comes_is_dropped_at_its_deadline() -> None:
    feed = small_feed()
    feed.expire(9.9)
    assert feed.drops(9.9, at_once=True) is None
    feed.expire(10.0)
    assert feed.drops(10.0, at_once=True) == Drops(groups=[0, 1], consumed=Consumed(groups_below=2, tasks={0: 4}))


@pytest.mark.parametrize(("incomplete", "trains"), [("drop", False), ("train", True)])
def test_an_incomplete_group_at_its_deadline(incomplete: str, trains: bool) -> None:
    feed = Feed(feed_settings(groups_per_step=1, incomplete=incomplete), Consumed())
    for number in range(3):
        feed.take_task(0, number, Task(number=number, group=0, member=number, members=3), 0.0)
    give(feed, 0, session(0, 1, group=0, member=0), 0.0)
    give(feed, 1, session(2, 3, group=0, member=2), 1.0)
    feed.expire(10.0)
    batch = feed.batch(VERSION, 10.0)
    assert (batch is not None) == trains
    give(feed, 2, session(4, 5, group=0, member=1), now=11.0)
    drops = feed.drops(12.0, at_once=True)
    assert drops is not None
    assert [drop.reason for drop in drops.drops] == (["group decided"] if trains else ["incomplete", "incomplete", "group decided"])
    assert drops.groups == ([] if trains else [0])


def test_a_session_that_is_alone_in_its_group_at_the_deadline_has_nobody_to_be_compared_with() -> None:
    feed = small_feed(incomplete="train")
    give(feed, 0, session(0, 1, group=0, member=0), 1.0)
    feed.expire(10.0)
    assert feed.batch(VERSION, 10.0) is None
    drops = feed.drops(10.0, at_once=True)
    assert drops is not None
    assert ([drop.reason for drop in drops.drops], drops.groups) == (["incomplete"], [0, 1])


def test_a_group_whose_sessions_all_ended_waits_only_for_a_retry() -> None:
    feed = small_feed(retry_s=2.0)
    give(feed, 0, session(0, 1, group=0, member=0), 1.0)
    give(feed, 1, session(2, 3, group=0, member=1, sampled=0), now=1.0)
    feed.expire(2.9)
    give(feed, 2, session(4, 5, group=0, member=1), 0.0, now=2.9)
    batch = feed.batch(VERSION, 2.9)
    assert batch is not None
    assert batch.groups_trained == [0]
    assert [drop.reason for drop in batch.drops] == ["empty"]


def test_the_empty_double_of_a_resent_open_is_no_attempt() -> None:
    feed = small_feed(retry_s=2.0)
    give(feed, 0, msgspec.structs.replace(session(0, 1, group=0, member=1, sampled=0), outcome="idle"))
    give(feed, 1, session(2, 3, group=0, member=0), 1.0)
    feed.expire(9.9)
    give(feed, 2, session(4, 5, group=0, member=1), 0.0, now=9.9)
    batch = feed.batch(VERSION, 9.9)
    assert batch is not None
    assert batch.groups_trained == [0]


def test_each_failed_attempt_gives_time_for_another_within_the_deadline_of_the_group() -> None:
    feed = small_feed(retry_s=4.0)
    give(feed, 0, session(0, 1, group=0, member=0), 1.0)
    for offset, now in ((1, 1.0), (2, 4.0), (3, 7.5)):
        feed.expire(now)
        give(feed, offset, session(10 * offset, 10 * offset, group=0, member=1, sampled=0), now=now)
    feed.expire(9.9)
    waiting = feed.drops(9.9, at_once=True)
    feed.expire(10.0)
    ended = feed.drops(10.0, at_once=True)
    assert waiting is not None
    assert ended is not None
    assert (waiting.groups, ended.groups) == ([], [0, 1])


def test_a_group_waits_for_the_reward_of_another_attempt_until_its_own_deadline() -> None:
    feed = small_feed(retry_s=2.0)
    give(feed, 0, session(0, 1, group=0, member=0), 1.0)
    give(feed, 1, session(2, 3, group=0, member=1, sampled=0))
    give(feed, 2, session(4, 5, group=0, member=1), now=1.9)
    feed.expire(9.9)
    feed.take_score(0, 1, score(2, 0.0), 9.9)
    batch = feed.batch(VERSION, 9.9)
    assert batch is not None
    assert batch.groups_trained == [0]


@pytest.mark.parametrize(("stale", "trained", "reasons"), [("mask", 3, []), ("drop", 2, ["too old"])])
def test_tokens_beyond_the_bound_become_context_or_cost_the_session(stale: str, trained: int, reasons: list[str]) -> None:
    """The first session has a token of version 0 and one of version 1, the second two of version 1; the bound allows 1."""
    feed = small_feed(stale=stale, staleness_bound=1)
    mixed = msgspec.structs.replace(session(0, 1, group=0, member=0), nodes=[node([1, 2], [3, 3], versions=[0, 1])])
    give(feed, 0, mixed, 0.0)
    give(feed, 1, session(2, 3, group=0, member=1, version=1), 1.0)
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert (batch.trained_tokens, batch.staleness) == (trained, 1)
    assert [drop.reason for drop in batch.drops] == reasons


@pytest.mark.parametrize("stale", ["mask", "drop"])
def test_a_session_whose_tokens_are_all_beyond_the_bound_is_too_old(stale: str) -> None:
    feed = small_feed(stale=stale, staleness_bound=1)
    give(feed, 0, session(0, 1, group=0, member=0, version=0), 0.0)
    give(feed, 1, session(2, 3, group=0, member=1, version=1), 1.0)
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert ([place.offset for place in batch.plan.places], [drop.reason for drop in batch.drops]) == ([1], ["too old"])


def test_a_group_that_is_too_old_makes_room_for_the_next() -> None:
    feed = small_feed(staleness_bound=0)
    for offset, version in enumerate((0, 0, 2, 2)):
        give(feed, offset, session(offset, offset, group=offset // 2, member=offset % 2, version=version), float(offset % 2))
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert (batch.groups_trained, batch.groups_dropped) == ([1], [0])


def test_a_token_of_a_version_that_was_never_made_is_an_error() -> None:
    feed = small_feed()
    give(feed, 0, session(0, 1, group=0, member=0, version=3), 0.0)
    give(feed, 1, session(2, 3, group=0, member=1, version=3), 1.0)
    with pytest.raises(LogError, match="tokens of version 3, the trainer stands at version 2"):
        feed.batch(VERSION, 0.0)


def test_two_rules_are_weighed_and_the_runner_may_be_one() -> None:
    feed = small_feed(rules={RULE: 2.0, "reported": 1.0})
    give(feed, 0, session(0, 1, group=0, member=0, reward=0.5), 1.0)
    give(feed, 1, session(2, 3, group=0, member=1, reward=0.25), 0.0)
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert batch.reward_mean == pytest.approx((2.5 + 0.25) / 2)


def test_a_trajectory_that_is_read_again_keeps_its_answers() -> None:
    feed = small_feed(rules={RULE: 2.0, "other": 1.0})
    for member in (0, 1):
        give(feed, member, session(member, member, group=0, member=member), float(member))
    feed.take_trajectory(0, 0, session(0, 0, group=0, member=0), 0.0)
    for member in (0, 1):
        feed.take_score(0, 2 + member, score(member, 1.0, rule="other"), 0.0)
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert batch.reward_mean == pytest.approx((1.0 + 3.0) / 2)


def test_a_runner_that_reports_nothing_fails_the_rule() -> None:
    feed = small_feed(rules={"reported": 1.0})
    give(feed, 0, session(0, 1, group=0, member=0))
    drops = feed.drops(0.0, at_once=True)
    assert drops is not None
    assert [drop.reason for drop in drops.drops] == ["failed score"]


def test_what_cannot_be_trained_is_dropped_with_its_reason() -> None:
    feed = small_feed()
    good = session(0, 1, group=0, member=0)
    broken = msgspec.structs.replace(good.nodes[0], parent=3)
    flaws: list[dict[str, Any]] = [{"outcome": "failed"}, {"nodes": [broken]}, {"nodes": []}]
    for offset, changes in enumerate(flaws):
        give(feed, offset, msgspec.structs.replace(good, close=offset, **changes))
    drops = feed.drops(0.0, at_once=True)
    assert drops is not None
    assert [drop.reason for drop in drops.drops] == ["failed", "malformed", "empty"]


def test_drops_wait_for_a_step_until_their_deadline() -> None:
    feed = small_feed(drops_deadline_s=3.0)
    give(feed, 0, session(0, 1, group=0, member=0, sampled=0), now=1.0)
    assert feed.drops(3.9) is None
    assert feed.drops(4.0) is not None
    assert feed.drops(9.0) is None


def test_a_backlog_of_drops_is_written_in_records_of_bounded_size_over_several_lives() -> None:
    """A life writes the first full record and dies: the next one decides the others, each once."""
    many = 2 * DROPS_PER_RECORD + 5
    logs = Logs()
    logs.trajectories[0] = [session(number, number, group=3, sampled=2) for number in range(many)]
    logs.scores[0] = [score(offset, ok=False) for offset in range(many)]
    written, sizes = Written(logs), []
    for at_once in (False, False, True):
        feed = Feed(feed_settings(), written.consumed)
        for event in reading(Random(0), logs, written.consumed):
            feed.take(*event[1:], 0.0)
        drops = feed.drops(0.0, at_once=at_once)
        assert drops is not None
        sizes.append(len(drops.drops))
        written.add(drops)
    assert sizes == [DROPS_PER_RECORD, DROPS_PER_RECORD, 5]
    assert sorted(written.dropped) == [(0, offset) for offset in range(many)]


def test_a_step_takes_as_many_drops_as_a_record_may() -> None:
    feed = small_feed()
    for offset in range(DROPS_PER_RECORD + 1):
        give(feed, offset, session(offset, offset, group=1, member=0, sampled=0))
    for member in (0, 1):
        offset = DROPS_PER_RECORD + 1 + member
        give(feed, offset, session(offset, offset, group=0, member=member), float(member))
    batch = feed.batch(VERSION, 0.0)
    assert batch is not None
    assert len(batch.drops) == DROPS_PER_RECORD
    assert batch.consumed.watermarks[0].trajectory == DROPS_PER_RECORD
    rest = feed.drops(0.0, at_once=True)
    assert rest is not None
    assert [drop.place.offset for drop in rest.drops] == [DROPS_PER_RECORD]


def test_each_version_shuffles_its_rows_in_its_own_way_by_the_seed() -> None:
    def plan(seed: int, version: int) -> Plan:
        feed = Feed(feed_settings(groups_per_step=1, seed=seed, layout={"mini_batches": 4, "micro_batch_tokens": 4}), Consumed())
        for member in range(8):
            feed.take_task(0, member, Task(number=member, group=0, member=member, members=8), 0.0)
            give(feed, member, session(member, member, group=0, member=member), float(member))
        batch = feed.batch(version, 0.0)
        assert batch is not None
        return batch.plan

    assert plan(1, 2) == plan(2, 1)
    assert len({str(plan(1, version).micro_batches) for version in range(4)}) == 4


def test_an_unknown_advantage_is_refused() -> None:
    with pytest.raises(UsageError, match="advantage 'best'"):
        Feed(feed_settings(advantage="best"), Consumed())
