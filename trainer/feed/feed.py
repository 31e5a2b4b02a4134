"""The feed: sessions gather in groups, complete groups in batches; whatever does not get so far is dropped with its reason (R6, R11).

Invariants: each session and each group is decided once (`trainer.feed.decisions` counts); which of several attempts is trained depends
on the order of reading alone; no session waits beyond the deadline of its group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from schemas.record import Record
from schemas.score import Score
from schemas.task import Task
from schemas.training import Consumed, Drops
from schemas.trajectory import Trajectory
from trainer.advantages import make_advantage
from trainer.feed.decisions import Decisions
from trainer.feed.groups import Deadlines, Group, GroupKey
from trainer.feed.join import REPORTED, Item, Key, Rewards, make_item
from trainer.feed.plan import Batch, Chosen, lay_out_chosen
from trainer.feed.settings import FeedSettings
from trainer.feed.staleness import fresh_paths

__all__ = ["Feed"]

FEWEST = 2
"""Sessions that an incomplete group needs: one alone has nobody to be compared with."""


class Feed:
    """One reader of `tasks`, `trajectories` and `scores`. Times are seconds of any steady clock; offsets of a partition come in order.

    `held_bytes` is the size of the undecided trajectories.

    :raises UsageError: an advantage, or a setting of it, is unknown.
    """

    def __init__(self, settings: FeedSettings, consumed: Consumed) -> None:
        self.settings = settings
        self.held_bytes = 0
        self._decisions = Decisions(consumed)
        self._rewards = Rewards(settings.rules)
        self._advantage = make_advantage(settings.advantage, settings.advantage_settings)
        self._alone = make_advantage(settings.alone, settings.alone_settings)
        self._items: dict[Key, tuple[Item, Group]] = {}
        self._groups: dict[GroupKey, Group] = {}
        self._running = 0
        self._deadlines = Deadlines()
        self._ready: deque[Group] = deque()
        self._given_up_rewards: list[float] = []
        """Rewards of scored sessions that were given up since the last batch."""

    # What is read

    def take(self, partition: int, offset: int, record: Record, now: float) -> None:
        """The next record of a partition of one of the three topics."""
        if isinstance(record, Trajectory):
            self.take_trajectory(partition, offset, record, now)
        elif isinstance(record, Score):
            self.take_score(partition, offset, record, now)
        elif isinstance(record, Task):
            self.take_task(partition, offset, record, now)

    def take_task(self, partition: int, offset: int, task: Task, now: float) -> None:
        """A Task: its group has so many members, and a deadline from now on. A group of `eval` tasks is decided at once."""
        if not self._decisions.take_task(partition, offset, task):
            return
        if task.purpose == "eval":
            self._decisions.groups.add(task.group)
            return
        group = self._group(task.group, now)
        group.members = task.members
        self._consider(group, now)

    def take_trajectory(self, partition: int, offset: int, trajectory: Trajectory, now: float) -> None:
        """An ended session: it waits for its reward, or is dropped at once."""
        if not self._decisions.take(partition, offset, trajectory):
            if self._decisions.is_decided(partition, offset):
                self._rewards.forget((partition, offset))
            return
        item = make_item(partition, offset, trajectory)
        if item.group is not None and self._is_late(item.group):
            self._drop(item, "group decided", now)
            return
        group = self._group(item.key if item.group is None else item.group, now)
        if item.is_attempt:
            group.ended.add(item.member)
        if item.paths:
            self._hold(item, group, now)
        else:
            self._drop(item, item.flaw, now)
            self._consider(group, now)

    def take_score(self, partition: int, offset: int, score: Score, now: float) -> None:
        """An answer of a rule, before or after its trajectory is read."""
        if not self._decisions.take_score(partition, offset, score):
            return
        key = (partition, score.trajectory)
        self._rewards.take(key, score)
        if key in self._items:
            self._settle(*self._items[key], now)

    def expire(self, now: float) -> None:
        """Groups whose deadline has passed end: trained as they are, or dropped."""
        for group in self._deadlines.due(now):
            if self.settings.incomplete == "train" and len(group.slots) >= FEWEST:
                self._close(group, now)
            else:
                self._give_up(group, "no score" if group.waiting else "incomplete", now)

    # What is decided

    def batch(self, version: int, now: float) -> Batch | None:
        """The next batch for a step from `version`, decided with this call; None while too few groups are ready.

        :raises LogError: a token is of a later version.
        """
        wanted = self.settings.groups_per_step
        found: list[tuple[Group, list[Chosen]]] = []
        while len(found) < wanted <= len(found) + len(self._ready):
            group = self._ready.popleft()
            if chosen := self._fresh(group, version, now):
                found.append((group, chosen))
        if len(found) == wanted:
            return self._train([group for group, _ in found], [each for _, chosen in found for each in chosen], version)
        self._ready.extendleft(group for group, _ in reversed(found))
        return None

    def drops(self, now: float, *, at_once: bool = False) -> Drops | None:
        """What was dropped, once it fills a record or has waited long enough for a Step, or `at_once`; again while there is more.

        Not while a batch is on its way into the log: this Consumed would already hold that batch.
        """
        if not self._decisions.are_drops_due(now, self.settings.drops_deadline_s, at_once=at_once):
            return None
        drops, groups = self._decisions.hand_out()
        return Drops(drops=drops, groups=groups, consumed=self._consumed())

    @property
    def has_batch(self) -> bool:
        """Whether enough groups are ready, unless they turn out too old."""
        return len(self._ready) >= self.settings.groups_per_step

    @property
    def ready_groups(self) -> int:
        """Complete groups that no batch holds, among them some that turn out too old."""
        return len(self._ready)

    def state(self) -> dict[str, int]:
        """For people: what a trainer without a batch waits for."""
        return {"groups_ready": len(self._ready), "groups_open": len(self._groups) - len(self._ready),
                "sessions_held": len(self._items), "held_bytes": self.held_bytes}  # fmt: skip

    # One session

    def _hold(self, item: Item, group: Group, now: float) -> None:
        group.waiting[item.key] = item
        self._items[item.key] = (item, group)
        self.held_bytes += item.size_bytes
        if REPORTED in self.settings.rules:
            self._rewards.report(item.key, item.trajectory.reward)
        self._settle(item, group, now)

    def _settle(self, item: Item, group: Group, now: float) -> None:
        """A session that waits may have its reward now."""
        verdict = self._rewards.verdict(item.key) if item.reward is None else None
        if verdict is not None and verdict.reward is None:
            del group.waiting[item.key]
            self._drop(item, "failed score", now)
        elif verdict is not None:
            item.reward = verdict.reward
            group.settle(item)
        self._consider(group, now)

    def _drop(self, item: Item, reason: str, now: float) -> None:
        self._decisions.drop(item.place, reason, item.group, now)
        self._release(item)

    def _release(self, item: Item) -> None:
        self._rewards.forget(item.key)
        if self._items.pop(item.key, None) is not None:
            self.held_bytes -= item.size_bytes

    # One group

    def _group(self, key: GroupKey, now: float) -> Group:
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(key, last_at=now + self.settings.group_deadline_s)
            self._deadlines.set(group, group.last_at)
            if group.number is not None:
                self._decisions.start_group()
                self._running += 1
        return group

    def _is_late(self, number: int) -> bool:
        group = self._groups.get(number)
        return number in self._decisions.groups or (group is not None and group.closed)

    def _consider(self, group: Group, now: float) -> None:
        """Something changed in a group: it may be complete, or wait for another attempt only, or no longer."""
        if group.is_complete:
            self._close(group, now)
        elif group.is_short and group.number is None:
            self._give_up(group, "incomplete", now)
        else:
            self._deadlines.set(group, now + self.settings.retry_s if group.is_short else group.last_at)

    def _close(self, group: Group, now: float) -> None:
        """What a group trains is known: other attempts are late, and it is ready if its rewards differ."""
        advantage = self._alone if group.number is None else self._advantage
        values = advantage([item.reward or 0.0 for item in group.chosen()])
        self._drop_all(group.give_others(), "group decided", now)
        if not any(values):
            self._give_up(group, "no signal", now)
            return
        group.closed = True
        group.advantages = dict(zip(sorted(group.slots), values, strict=True))
        self._ready.append(group)

    def _give_up(self, group: Group, reason: str, now: float) -> None:
        group.closed = True
        self._given_up_rewards += [item.reward for item in group.chosen() if item.reward is not None]
        self._drop_all([*group.chosen(), *group.give_others()], reason, now)
        self._forget_group(group)
        if group.number is not None:
            self._decisions.drop_group(group.number, now)

    def _drop_all(self, items: Iterable[Item], reason: str, now: float) -> None:
        for item in items:
            self._drop(item, reason, now)

    def _forget_group(self, group: Group) -> None:
        del self._groups[group.key]
        self._running -= group.number is not None

    # One batch

    def _fresh(self, group: Group, version: int, now: float) -> list[Chosen]:
        """The sessions of a ready group that a step from `version` may train; those too old are dropped, with the group if none is left."""
        chosen = []
        for member in sorted(group.slots):
            item = group.slots[member]
            if paths := fresh_paths(item, version, self.settings.staleness_bound, self.settings.stale):
                chosen.append(Chosen(item, paths, group.advantages[member]))
            else:
                del group.slots[member]
                self._drop(item, "too old", now)
        if not chosen:
            self._give_up(group, "too old", now)
        return chosen

    def _train(self, groups: list[Group], chosen: list[Chosen], version: int) -> Batch:
        for group in groups:
            self._forget_group(group)
            if group.number is not None:
                self._decisions.end_group(group.number)
        for each in chosen:
            self._decisions.train(each.item.place)
            self._release(each.item)
        plan, trajectories = lay_out_chosen(chosen, self.settings.layout, seed=self.settings.seed + version)
        drops, groups_dropped = self._decisions.hand_out()
        given_up, self._given_up_rewards = self._given_up_rewards, []
        rewards = [*given_up, *(each.item.reward or 0.0 for each in chosen)]
        return Batch(
            plan=plan, trajectories=trajectories, version=version, drops=drops, groups_dropped=groups_dropped, consumed=self._consumed(),
            groups_trained=sorted(group.number for group in groups if group.number is not None),
            trained_tokens=sum(path.trained for each in chosen for path in each.paths),
            staleness=version - min(path.lowest_version for each in chosen for path in each.paths),
            reward_mean=sum(rewards) / len(rewards),
        )  # fmt: skip

    def _consumed(self) -> Consumed:
        self._decisions.require_balance(held=len(self._items), running=self._running)
        return self._decisions.consumed()
