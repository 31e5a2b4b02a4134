"""R6, first half: each ended session has one Trajectory that counts, equal to what its records say.

A Trajectory counts where its `close` lies above every earlier one of its partition; the others are duplicates and harmless, as long as
the session has one that counts. What a Trajectory must hold:
- its session's Open (check, purpose, group, member, attempt, payload, model), and of the Close its offset, outcome and reward;
- one node a request, in the order of the requests: the request's own tokens, then the accepted ones; base and base_length as parent and
  parent_length; mask 1 exactly on accepted tokens of requests that ended by `stop` or `length`; logprobs 0.0 and version −1 where given.

Where retention took the Open of a session, its Trajectory is not compared. Where it took the first Trajectories of a partition, a session
that closed before the first one left was written may have had one.

Held in memory: one Kept per Trajectory that counts, with masks and versions of its nodes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy

from infra.audit.entry import Entry, Fields
from infra.audit.findings import Findings
from infra.audit.sessions import TOKEN_BYTES, PartitionRead, RequestRead, SessionRead

GIVEN_VERSION = -1


@dataclass(frozen=True, slots=True)
class KeptNode:
    """What training needs of a node: `mask` uint8[n], `versions` int32[n], its place in the tree."""

    parent: int
    parent_length: int
    mask: bytes
    versions: bytes


@dataclass(frozen=True, slots=True)
class Kept:
    """A Trajectory that counts."""

    entry_offset: int
    session: int
    close: int
    purpose: str
    group: int | None
    member: int | None
    nodes: list[KeptNode]

    @property
    def trainable(self) -> bool:
        """True where a token has mask 1."""
        return any(1 in node.mask for node in self.nodes)


@dataclass(slots=True)
class PartitionTrajectories:
    """The Trajectories of one partition from offset `begin`: those that count, by offset; `offsets` of all; `first_ms` when the first
    one left was written, milliseconds since 1970."""

    begin: int = 0
    counted: dict[int, Kept] = field(default_factory=dict)
    offsets: set[int] = field(default_factory=set)
    sessions: set[int] = field(default_factory=set)
    first_ms: int | None = None
    greatest_closes: list[tuple[int, int]] = field(default_factory=list)
    """(offset, greatest Close up to and with it), in the order of offsets."""

    @property
    def greatest_close(self) -> int:
        """Of all Trajectories read so far; −1 without any."""
        return self.greatest_closes[-1][1] if self.greatest_closes else -1

    @property
    def end(self) -> int:
        """The offset after the last Trajectory."""
        return self.greatest_closes[-1][0] + 1 if self.greatest_closes else self.begin

    def may_have_expired(self, closed: Entry) -> bool:
        """The Trajectory of a session that ended with this record may be gone: the first one left was written later.

        By stamps: the first one left may be a duplicate, whose Close says nothing of those before it.
        """
        return self.begin > 0 and (self.first_ms is None or closed.timestamp_ms <= self.first_ms)

    def close_below(self, offset: int) -> int:
        """The greatest Close among the Trajectories below `offset`; −1 without any."""
        count = bisect_left(self.greatest_closes, (offset, -1))
        return self.greatest_closes[count - 1][1] if count else -1


Trajectories = defaultdict[int, PartitionTrajectories]

Decided = Mapping[tuple[int, int], int]
"""(partition, session) → offset of the Trajectory that a Step or Drops record names."""


def read_trajectories(
    entries: Iterable[Entry], partitions: Mapping[int, PartitionRead], starts: Mapping[int, int], decided: Decided, findings: Findings
) -> Trajectories:
    """Check each Trajectory against its session; keep those that count. `starts`: the first offset left in each partition.

    `decided` tells duplicates whose first one is gone.
    """
    read: Trajectories = defaultdict(PartitionTrajectories)
    read.update({partition: PartitionTrajectories(begin) for partition, begin in starts.items()})
    for entry in entries:
        _compare(entry, partitions.get(entry.partition), findings)
        kept = read[entry.partition]
        first_is_gone = decided.get((entry.partition, entry["session"]), kept.begin) < kept.begin
        _keep(entry, kept, duplicate=first_is_gone or entry["close"] <= kept.greatest_close)
    return read


def check_complete(
    partitions: Mapping[int, PartitionRead], read: Trajectories, ended_before_ms: int, findings: Findings
) -> None:
    """Every session that ended before `ended_before_ms` (and not by a reset) has a Trajectory that counts."""
    for partition, sessions in partitions.items():
        written = read[partition].sessions
        for session in sessions.sessions.values():
            if session.closed is None or session.ended_by_reset or session.closed.timestamp_ms > ended_before_ms:
                continue
            opened = session.entry.offset
            if opened not in written and read[partition].may_have_expired(session.closed):
                findings.leave("R6", "trajectories", partition, "that an ended session has its Trajectory")
                continue
            findings.need(opened in written, "R6", session.closed, "session %d ended here and has no Trajectory that counts", opened)


def _keep(entry: Entry, read: PartitionTrajectories, *, duplicate: bool) -> None:
    read.greatest_closes.append((entry.offset, max(read.greatest_close, entry["close"])))
    read.offsets.add(entry.offset)
    read.first_ms = entry.timestamp_ms if read.first_ms is None else read.first_ms
    if duplicate:
        return
    read.sessions.add(entry["session"])
    nodes = [KeptNode(node["parent"], node["parent_length"], node["mask"], node["versions"]) for node in entry["nodes"]]
    read.counted[entry.offset] = Kept(
        entry.offset, entry["session"], entry["close"], entry["purpose"], entry["group"], entry["member"], nodes
    )


def _compare(entry: Entry, partition: PartitionRead | None, findings: Findings) -> None:
    if partition is None or not partition.holds(entry["session"]):
        findings.leave("R6", "sessions", entry.partition, "that a Trajectory is what its session's records say")
        return
    session = partition.sessions.get(entry["session"])
    ended = session is not None and session.closed is not None
    if not findings.need(ended, "R6", entry, "session %d is not ended, or not in the log", entry["session"]):
        return
    assert session is not None
    for said, expected, name in _differences(entry, session):
        findings.need(False, "R6", entry, "session %d: %s is %s, the log says %s", entry["session"], name, said, expected)


Difference = tuple[object, object, str]


def _differences(entry: Entry, session: SessionRead) -> Iterator[Difference]:
    assert session.closed is not None
    expected = {name: session.entry[name] for name in ("check", "purpose", "group", "member", "attempt", "payload", "model")}
    expected["close"] = session.closed.offset
    if session.closed.type == "Close":
        expected |= {"outcome": session.closed["outcome"], "reward": session.closed["reward"]}
    for name, value in expected.items():
        if entry[name] != value:
            yield entry[name], value, name
    yield from _node_differences(entry["nodes"], list(session.requests.values()))


def _node_differences(nodes: list[Fields], requests: list[RequestRead]) -> Iterator[Difference]:
    said, expected = [node["request"] for node in nodes], [request.offset for request in requests]
    if said != expected:
        yield said, expected, "its list of requests"
        return
    indexes = {offset: index for index, offset in enumerate(expected)}
    for index, (node, request) in enumerate(zip(nodes, requests, strict=True)):
        for name, value in _expected_node(request, indexes).items():
            if node[name] != value:
                yield _shown(name, node[name]), _shown(name, value), f"{name} of node {index}"


def _expected_node(request: RequestRead, indexes: Mapping[int, int]) -> Fields:
    given = len(request.entry["tokens"]) // TOKEN_BYTES
    trained = 1 if request.end in ("stop", "length") else 0
    return {
        "parent": indexes.get(request.entry["base"], -1),
        "parent_length": request.prefix_length,
        "prompt": given,
        "tokens": request.entry["tokens"] + bytes(request.tokens),
        "mask": bytes(given) + bytes([trained]) * request.accepted,
        "logprobs": bytes(given * TOKEN_BYTES) + bytes(request.logprobs),
        "versions": _expected_versions(request, given),
        "sampling": request.entry["sampling"],
        "end": request.end,
    }


def _expected_versions(request: RequestRead, given: int) -> bytes:
    values = [GIVEN_VERSION] * given
    for span in request.spans:
        values += [span.version] * span.length
    return numpy.array(values, "<i4").tobytes()


_DTYPES = {"tokens": "<i4", "versions": "<i4", "logprobs": "<f4", "mask": "u1"}


def _shown(name: str, value: object) -> object:
    """An array for people: its first values and its length."""
    if name not in _DTYPES or not isinstance(value, bytes):
        return value
    values = numpy.frombuffer(value, _DTYPES[name]).tolist()
    return f"{values[:8]}{' …' if len(values) > 8 else ''} ({len(values)})"
