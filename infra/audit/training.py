"""R6, second half, and R8 as far as `training` alone tells: what was trained, dropped, published and consumed.

- a session is in at most one Step or Drops, and its place is a Trajectory that counts; `eval` sessions are in none;
- a trained token (partition, session, node, token) is in one row of one Step; a (group, member) is trained once, a group is
  trained or dropped once;
- `trained_tokens`, `groups_trained` and `staleness` equal their recomputation; staleness is the step's version minus the lowest version
  among its trained tokens, never negative, and within the bound where one is given;
- Consumed is true and never goes back: all trajectories below a watermark are decided, all decided ones are below it or listed, `close`
  is the greatest Close below it, no Score below `score` decides an undecided trajectory;
- Steps are numbered from 1 without a gap; versions grow, each is published once, a Step starts from the newest version, and what it
  publishes has its digest.

Held in memory: each trained token once (a tuple), each decided trajectory once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from infra.audit.entry import Entry, Fields
from infra.audit.findings import Findings
from infra.audit.plan import BadRow, layout_objection, trained_tokens
from infra.audit.scores import FirstScores
from infra.audit.trajectories import Kept, Trajectories
from infra.audit.watermarks import Consumption

TokenKey = tuple[int, int, int, int]
"""Partition, session, node, token."""


def decided_places(entries: Iterable[Entry]) -> dict[tuple[int, int], int]:
    """(partition, session) → offset of the Trajectory that a Step or Drops record names."""
    places: list[Fields] = []
    for entry in entries:
        if entry.type == "Step":
            places += entry["plan"]["places"]
        if entry.type in ("Step", "Drops"):
            places += [dropped["place"] for dropped in entry["drops"]]
    return {(place["partition"], place["session"]): place["offset"] for place in places}


@dataclass(slots=True)
class TrainingRead:
    """`training` as `read` finds it. What it sums up are the report's figures."""

    trajectories: Trajectories
    scores: FirstScores
    findings: Findings
    staleness_bound: int | None = None
    versions: dict[int, Entry] = field(default_factory=dict)
    steps: dict[int, Entry] = field(default_factory=dict)
    times_trained: Counter[TokenKey] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    staleness_max: int | None = None
    sessions_trained: int = 0
    decided: dict[tuple[int, int], Entry] = field(default_factory=dict)
    members: dict[tuple[int, int], Entry] = field(default_factory=dict)
    consumption: Consumption = field(init=False)

    def __post_init__(self) -> None:
        self.consumption = Consumption(self.trajectories, self.scores, self.findings)

    @property
    def trained_twice(self) -> int:
        """How often a token was trained beyond its first time."""
        return sum(times - 1 for times in self.times_trained.values())

    def read(self, entries: Iterable[Entry]) -> None:
        """All records, write by write, then what can be said only at the end. The records of a write decide together."""
        takes = {"WeightVersion": self._version, "Step": self._step, "Drops": self._drops}
        for _, write in itertools.groupby(entries, lambda entry: entry.nonce):
            records = [entry for entry in write if entry.type in takes]
            for entry in records:
                takes[entry.type](entry)
            for entry in records:
                if entry.type != "WeightVersion":
                    self.consumption.check(entry)
        self._require_published()

    def _drops(self, entry: Entry) -> None:
        self._take_drops(entry)
        self._end_groups(entry, entry["groups"])

    def _step(self, entry: Entry) -> None:
        self._number(entry)
        taken = [self._decide(entry, place, trained=True) for place in entry["plan"]["places"]]
        self._take_drops(entry)
        self._rows(entry, taken)
        self._members(entry, taken)
        self._end_groups(entry, [*entry["groups_trained"], *entry["groups_dropped"]])

    def _number(self, entry: Entry) -> None:
        need, expected = self.findings.need, max(self.steps, default=0) + 1
        need(entry["step"] == expected, "R6", entry, "step %d where %d is expected", entry["step"], expected)
        newest = max((number for number, version in self.versions.items() if version["step"] != entry["step"]), default=None)
        need(entry["version"] == newest, "R8", entry, "step starts from version %d, the newest is %s", entry["version"], newest)
        self.steps[entry["step"]] = entry

    def _end_groups(self, entry: Entry, groups: list[int]) -> None:
        for group in groups:
            first = group not in self.consumption.groups
            self.findings.need(first, "R6", entry, "group %d was decided before", group)
            self.consumption.groups.add(group)

    def _take_drops(self, entry: Entry) -> None:
        for dropped in entry["drops"]:
            self.dropped[dropped["reason"]] += 1
            self._decide(entry, dropped["place"], trained=False)
            if dropped["group"] is not None:
                self.consumption.dropped_groups.add(dropped["group"])

    def _decide(self, entry: Entry, place: Fields, *, trained: bool) -> Kept | None:
        """A session enters a Step or Drops record; answers its Trajectory, None where none counts at that place."""
        need, partition, session = self.findings.need, place["partition"], place["session"]
        key = (partition, session)
        before = self.decided.setdefault(key, entry)
        need(before is entry, "R6", entry, "session %d-%d is in the record at %d, too", partition, session, before.offset)
        self.sessions_trained += trained
        self.consumption.decide(partition, place["offset"])
        read = self.trajectories[partition]
        kept = read.counted.get(place["offset"])
        if place["offset"] < read.begin:
            self.findings.leave("R6", "trajectories", partition, "that a Step or Drops record names a Trajectory that counts")
            return None
        stands = kept is not None and kept.session == session
        need(stands, "R6", entry, "no Trajectory of session %d-%d that counts stands at %d", partition, session, place["offset"])
        if kept is None:
            return None
        need(kept.purpose == "train", "R6", entry, "session %d-%d is %s", partition, session, kept.purpose)
        return kept

    def _rows(self, entry: Entry, taken: list[Kept | None]) -> None:
        plan, need = entry["plan"], self.findings.need
        objection = layout_objection(plan)
        need(objection is None, "R6", entry, "%s", objection)
        versions: list[int] = []
        for number, row in enumerate(plan["rows"]):
            if not need(0 <= row["place"] < len(taken), "R6", entry, "row %d has place %d of %d", number, row["place"], len(taken)):
                continue
            kept = taken[row["place"]]
            if kept is not None:
                versions += self._row(entry, number, row, kept)
        if None not in taken:
            self._totals(entry, versions)

    def _row(self, entry: Entry, number: int, row: Fields, kept: Kept) -> list[int]:
        place = entry["plan"]["places"][row["place"]]
        try:
            tokens = trained_tokens(row, kept)
        except BadRow as objection:
            self.findings.need(False, "R6", entry, "row %d: %s", number, objection)
            return []
        keys = [(place["partition"], kept.session, token.node, token.token) for token in tokens]
        again = [key for key in keys if self.times_trained[key]]
        self.times_trained.update(keys)
        self.findings.need(not again, "R6", entry, "row %d: %d tokens were trained before, first %s", number, len(again), again[:1])
        return [token.version for token in tokens]

    def _totals(self, entry: Entry, versions: list[int]) -> None:
        need, staleness = self.findings.need, entry["version"] - min(versions, default=entry["version"])
        said = entry["trained_tokens"]
        need(said == len(versions), "R6", entry, "trained_tokens is %d, the plan trains %d", said, len(versions))
        need(entry["staleness"] == staleness, "R6", entry, "staleness is %d, recomputed %d", entry["staleness"], staleness)
        newest = max(versions, default=0)
        need(newest <= entry["version"], "R6", entry, "trains tokens of version %d, starts from %d", newest, entry["version"])
        within = self.staleness_bound is None or staleness <= self.staleness_bound
        need(within, "R6", entry, "staleness %d, the bound is %s", staleness, self.staleness_bound)
        self.staleness_max = max(staleness, self.staleness_max or 0)

    def _members(self, entry: Entry, taken: list[Kept | None]) -> None:
        known = [kept for kept in taken if kept is not None]
        need, groups = self.findings.need, {kept.group for kept in known if kept.group is not None}
        said = set(entry["groups_trained"])
        same = said == groups if None not in taken else said >= groups
        need(same, "R6", entry, "groups_trained is %s, the places are of %s", sorted(said), sorted(groups))
        members = Counter((kept.group, kept.member or 0) for kept in known if kept.group is not None)
        for (group, member), count in members.items():
            first = self.members.setdefault((group or 0, member), entry) is entry and count == 1
            need(first, "R6", entry, "member %d of group %d is trained twice", member, group)

    def _version(self, entry: Entry) -> None:
        need, newest, version = self.findings.need, max(self.versions, default=-1), entry["version"]
        need(version > newest, "R8", entry, "version %d is not above %d", version, newest)
        first = bool(self.versions) or (version == 0 and entry["step"] is None)
        need(first, "R8", entry, "the first version is %d of step %s", version, entry["step"])
        need(entry["step"] is not None or version == 0, "R8", entry, "version %d belongs to no step", version)
        before = self.versions[newest]["files_from"] if self.versions else 0
        stands = before <= entry["files_from"] <= version
        need(stands, "R8", entry, "version %d lets go of files below %d, the one before below %d", version, entry["files_from"], before)
        self.versions.setdefault(version, entry)

    def _require_published(self) -> None:
        """Each version has the Step that made it, each publishing Step its version, with one digest."""
        need = self.findings.need
        for step in self.steps.values():
            version = self.versions.get(step["published"]) if step["published"] is not None else None
            announced = step["published"] is None or (version is not None and version["step"] == step["step"])
            need(announced, "R8", step, "step %d publishes version %s, which is not announced", step["step"], step["published"])
        for version in self.versions.values():
            if version["step"] is not None:
                self._require_maker(version)

    def _require_maker(self, version: Entry) -> None:
        """A version of a Step that published another one before was made again with other numerics: its digest is its own (R7)."""
        need, step = self.findings.need, self.steps.get(version["step"])
        need(step is not None, "R8", version, "version %d is of step %d, which is not in the log", version["version"], version["step"])
        if step is not None and step["published"] == version["version"]:
            same, first = step["weights_sha256"] == version["weights_sha256"], version["again_from"] is None
            need(first, "R8", version, "version %d is said to be made again, but step %d published it", version["version"], version["step"])
            need(same, "R8", version, "weights_sha256 of version %d differs from that of step %d", version["version"], step["step"])
        elif step is not None:
            again = step["published"] is not None and step["published"] < version["version"]
            need(again, "R8", version, "version %d: step %d published %s", version["version"], step["step"], step["published"])
            begun = version["again_from"]
            before = begun is not None and 0 <= begun < version["step"]
            need(before, "R8", version, "version %d of step %d was made again from step %s", version["version"], version["step"], begun)
