"""Loss by design: what was sampled and is never trained, by reason; and whether long sessions are trained as often as short ones. Pure.

Some loss is meant: groups without a signal, tokens that are too old, agents that leave. It must be seen all the same, because what is lost
in silence is rarely lost evenly.

Invariants: every sampled token that stands in the log is in exactly one of trained, evaluated, pending, and wasted with one reason; a
decided training session is trained or dropped with one reason. Not seen here: tokens that an owner had sampled and not written when it
died, and sessions whose records have expired.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from infra.audit.entry import Entry
from infra.audit.sessions import PartitionRead, SessionRead

__all__ = ["Dropped", "Lengths", "Loss", "loss_of"]

TRAINABLE = ("stop", "length")
QUANTILES = (0.1, 0.5, 0.9, 0.99, 1.0)
PARTS = 4
"""The offered sessions, sorted by length, are cut into so many parts to see what share of each was trained."""

REGENERATED = "regenerated after a takeover"
AFTER_END = "written after the end"
MASKED = "masked in a trained session"
RESET = "ended by a reset"
IGNORED = {"span of another epoch": REGENERATED, "request had ended": AFTER_END, "session had ended": AFTER_END}
"""Why spans that did not count were sampled in vain, by the words of the fold."""

Key = tuple[int, int]
"""Partition and offset of a session."""


class Dropped(NamedTuple):
    """Training sessions dropped for one reason, and the tokens that might have been trained of them."""

    sessions: int
    tokens: int


class Lengths(NamedTuple):
    """Sampled tokens per session: how many sessions, their mean, and quantiles (nearest rank: a value that occurs)."""

    sessions: int = 0
    mean: float = 0.0
    quantiles: Mapping[str, int] = MappingProxyType({})


NONE = Lengths()


@dataclass(frozen=True, slots=True)
class Loss:
    """Tokens, but for `dropped` (by reason) and `expired` (decided sessions whose records are gone).

    `offered` are the decided training sessions with a sampled token, `trained_sessions` those of them that a Step trained; `shares` is the
    trained share of the shortest quarter of the offered ones, up to that of the longest.
    """

    sampled: int = 0
    trained: int = 0
    evaluated: int = 0
    pending: int = 0
    wasted: dict[str, int] = field(default_factory=dict)
    dropped: dict[str, Dropped] = field(default_factory=dict)
    offered: Lengths = NONE
    trained_sessions: Lengths = NONE
    shares: list[float] = field(default_factory=list)
    expired: int = 0

    @property
    def length_ratio(self) -> float | None:
        """Mean length of the trained sessions over that of the offered ones: 1 without a bias, below it where long ones are lost."""
        return round(self.trained_sessions.mean / self.offered.mean, 4) if self.offered.mean and self.trained_sessions.sessions else None


@dataclass
class _Decided:
    """What `training` says of sessions: trained tokens, or the reason of the drop."""

    trained: Counter[Key] = field(default_factory=Counter)
    dropped: dict[Key, str] = field(default_factory=dict)

    @classmethod
    def read(cls, training: Iterable[Entry]) -> _Decided:
        decided = cls()
        for entry in training:
            if entry.type == "Step":
                decided._step(entry)
            if entry.type in ("Step", "Drops"):
                decided.dropped |= {_key(drop["place"]): drop["reason"] for drop in entry["drops"]}
        return decided

    def _step(self, step: Entry) -> None:
        places = [_key(place) for place in step["plan"]["places"]]
        self.trained.update(dict.fromkeys(places, 0))
        for row in step["plan"]["rows"]:
            ranges = zip(row["train_from"], row["train_to"], strict=True)
            self.trained[places[row["place"]]] += sum(end - first for first, end in ranges)

    def __contains__(self, key: Key) -> bool:
        return key in self.trained or key in self.dropped

    def keys(self) -> set[Key]:
        """The decided sessions."""
        return {*self.trained, *self.dropped}


def loss_of(partitions: Mapping[int, PartitionRead], training: Iterable[Entry]) -> Loss:
    """The figures of a log: its folded `sessions`, and the records of `training`."""
    decided = _Decided.read(training)
    wasted: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for key, session in _sessions(partitions):
        for name, tokens in _tokens(key, session, decided):
            (found if name in ("trained", "evaluated", "pending") else wasted)[name] += tokens
    for partition in partitions.values():
        for why, count in partition.ignored_tokens.items():
            wasted[IGNORED[why]] += count
    lengths = {key: _length(session) for key, session in _sessions(partitions) if key in decided and _length(session)}
    trained = {key for key in lengths if key in decided.trained}
    return Loss(
        sampled=found.total() + wasted.total(), trained=found["trained"], evaluated=found["evaluated"], pending=found["pending"],
        wasted=dict(sorted((+wasted).items())), dropped=_dropped(partitions, decided), offered=_lengths(lengths.values()),
        trained_sessions=_lengths(lengths[key] for key in trained), shares=_shares(lengths, trained),
        expired=len(decided.keys() - {key for key, _ in _sessions(partitions)}),
    )  # fmt: skip


def _sessions(partitions: Mapping[int, PartitionRead]) -> Iterator[tuple[Key, SessionRead]]:
    for number, partition in partitions.items():
        yield from (((number, offset), session) for offset, session in partition.sessions.items())


def _tokens(key: Key, session: SessionRead, decided: _Decided) -> Iterator[tuple[str, int]]:
    """The accepted tokens of a session, each under one name."""
    for request in session.requests.values():
        if request.end not in TRAINABLE:
            yield request.end or "pending", request.accepted
    trainable = _trainable(session)
    if session.entry["purpose"] == "eval":
        yield "evaluated", trainable
    elif key in decided.trained:
        yield "trained", decided.trained[key]
        yield MASKED, trainable - decided.trained[key]
    elif key in decided.dropped:
        yield f"dropped: {decided.dropped[key]}", trainable
    else:
        yield RESET if session.ended_by_reset else "pending", trainable


def _trainable(session: SessionRead) -> int:
    return sum(request.accepted for request in session.requests.values() if request.end in TRAINABLE)


def _length(session: SessionRead) -> int:
    return sum(request.accepted for request in session.requests.values())


def _dropped(partitions: Mapping[int, PartitionRead], decided: _Decided) -> dict[str, Dropped]:
    tokens = {key: _trainable(session) for key, session in _sessions(partitions)}
    by_reason: dict[str, list[Key]] = {}
    for key, reason in decided.dropped.items():
        by_reason.setdefault(reason, []).append(key)
    return {reason: Dropped(len(keys), sum(tokens.get(key, 0) for key in keys)) for reason, keys in sorted(by_reason.items())}


def _lengths(values: Iterable[int]) -> Lengths:
    ordered = sorted(values)
    if not ordered:
        return NONE
    quantiles = {f"p{round(quantile * 100)}": ordered[math.ceil(quantile * len(ordered)) - 1] for quantile in QUANTILES}
    return Lengths(len(ordered), round(sum(ordered) / len(ordered), 3), quantiles)


def _shares(lengths: Mapping[Key, int], trained: set[Key]) -> list[float]:
    ordered: Sequence[Key] = sorted(lengths, key=lambda key: (lengths[key], key))
    if len(ordered) < PARTS:
        return []
    cuts = [len(ordered) * part // PARTS for part in range(PARTS + 1)]
    parts = [ordered[first:end] for first, end in itertools.pairwise(cuts)]
    return [round(sum(key in trained for key in part) / len(part), 3) for part in parts]


def _key(place: Mapping[str, int]) -> Key:
    return place["partition"], place["session"]
