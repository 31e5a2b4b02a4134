"""A small, complete, correct log, written by hand as msgpack bytes: not through the product's codec, nor its record classes.

Offsets count in tens, so that a test can plant a record between two others. The story (partition 0 unless said):
- node a claims epoch 0, two sessions of group 0 begin; a dies in mid-generation, node b claims epoch 30 and goes on;
  a's last span comes too late;
- session 10 asks again with its first answer as base, and leaves; both sessions close and are trained in step 1 (version 0 → 1);
- session 180 is an evaluation and is closed idle; session 220 stays empty and is dropped;
- partition 1: session 10 of group 3 is sampled under versions 0 and 1 and trained in step 2 (version 1 → 2).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy
from safetensors.numpy import save

from infra.audit.log import ListLog
from infra.audit.verify import Audit, AuditOptions, Verdict
from streams.broker import Message

Fields = dict[str, Any]
Where = tuple[str, int, int]
CAS_TOPICS = ("tasks", "training", "grants")
EPOCH_A, EPOCH_B, EPOCH_OF_1 = 0, 30, 10


def i4(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def f4(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@dataclass
class Raw:
    """One record before it becomes bytes; a test changes any part. `value` replaces the bytes altogether."""

    fields: Fields
    timestamp_ms: int
    schema: bytes = b"1.0"
    nonce: bytes | None = None
    type_header: bytes | None = None
    value: bytes | None = None

    def message(self, where: Where) -> Message:
        headers = [("type", self.type_header or self.fields["type"].encode()), ("schema", self.schema)]
        headers += [("nonce", self.nonce)] if self.nonce is not None else []
        value = self.value if self.value is not None else msgpack.packb(self.fields)
        return Message("seamlessflow." + where[0], where[1], where[2], self.timestamp_ms, b"key", value, tuple(headers))


@dataclass
class RawLog:
    """Records by (topic, partition, offset), what groups committed, and the first offsets that retention left by (topic, partition)."""

    records: dict[Where, Raw] = field(default_factory=dict)
    commits: dict[str, dict[int, tuple[int, str]]] = field(default_factory=dict)
    firsts: dict[tuple[str, int], int] = field(default_factory=dict)

    def put(self, topic: str, partition: int, offset: int, type_: str, *, write: bytes | None = None, **fields: Any) -> Fields:
        """Add one record. `write` is the nonce of its cas write; one of its own where it is not given."""
        return self.put_fields((topic, partition, offset), {"type": type_, **fields}, write)

    def put_fields(self, where: Where, fields: Fields, nonce: bytes | None = None) -> Fields:
        """As `put`, for fields that have `put`'s own names. The timestamp grows by 10 ms an offset."""
        if where[0] in CAS_TOPICS and nonce is None:
            nonce = hashlib.md5(repr(where).encode()).digest()
        self.records[where] = Raw(fields, timestamp_ms=1_000_000 + 10 * where[2], nonce=nonce)
        return fields

    def at(self, topic: str, partition: int, offset: int) -> Fields:
        return self.records[topic, partition, offset].fields

    def session(self, offset: int, type_: str, partition: int = 0, **fields: Any) -> Fields:
        return self.put("sessions", partition, offset, type_, **fields)

    def list_log(self) -> ListLog:
        return ListLog([raw.message(where) for where, raw in self.records.items()], self.commits, self.firsts)

    def audit(self, **options: Any) -> Verdict:
        return Audit(self.list_log(), AuditOptions(**options)).run()


Plant = Callable[[RawLog], None]


def span(session: int, request: int, epoch: int, start: int, tokens: list[int], *, version: int = 0, finish: str | None = None) -> Fields:
    """A span whose logprobs are −(token)/100. `finish` is absent where it is None, as the product writes it."""
    fields: Fields = {
        "session": session, "request": request, "epoch": epoch, "start": start, "tokens": i4(*tokens),
        "logprobs": f4(*(-token / 100 for token in tokens)), "version": version, "kv_version": version,
    }
    return fields | ({"finish": finish} if finish else {})


def node(
    request: int, prompt: list[int], sampled: list[int], end: str, *, mask: int = 1, versions: list[int] | None = None, **place: int
) -> Fields:
    given = len(prompt)
    return {
        "request": request, "prompt": given, "tokens": i4(*prompt, *sampled), "mask": bytes([0] * given + [mask] * len(sampled)),
        "logprobs": f4(*[0.0] * given, *(-token / 100 for token in sampled)),
        "versions": i4(*[-1] * given, *(versions or [0] * len(sampled))), "sampling": {"max_tokens": 6}, "end": end, **place,
    }


def grant(partition: int, node: str, incarnation: str) -> Fields:
    return {"type": "Grant", "partition": partition, "node": node, "incarnation": incarnation}


def role(node: str, role: str, *, asleep: bool = False) -> Fields:
    return {"type": "Role", "node": node, "role": role, "asleep": asleep}


def row(place: int, nodes: list[int], stops: list[int], *ranges: tuple[int, int]) -> Fields:
    return {
        "place": place, "nodes": nodes, "stops": stops, "train_from": [first for first, _ in ranges],
        "train_to": [end for _, end in ranges], "advantage": 0.5,
    }


def place(partition: int, offset: int, session: int) -> Fields:
    return {"partition": partition, "offset": offset, "session": session}


def mark(partition: int, trajectory: int, close: int, score: int, decided: list[int] | None = None) -> Fields:
    return {"partition": partition, "trajectory": trajectory, "close": close, "score": score, "decided": decided or []}


def complete_log(folder: Path) -> RawLog:
    """The log of the module's docstring; weight files lie in `folder`."""
    log = RawLog()
    _tasks_and_grants(log)
    _sessions_before_death(log)
    _sessions_after_death(log)
    _other_sessions(log)
    _trajectories(log)
    _training(log, folder)
    log.commits = {"rollout": {0: (251, "epoch=30;"), 1: (51, "epoch=10;")}, "assembler": {0: (251, "epoch=30;"), 1: (51, "epoch=10;")}}
    return log


def _tasks_and_grants(log: RawLog) -> None:
    for number, (group, member, members) in enumerate([(0, 0, 2), (0, 1, 2), (1, 0, 1), (2, 0, 1), (3, 0, 1)]):
        purpose = {"purpose": "eval"} if group == 1 else {}
        log.put("tasks", group % 16, 10 * number, "Task", number=number, group=group, member=member, members=members, **purpose)
    for epoch, partition, node_, incarnation in [(EPOCH_A, 0, "a", "x"), (EPOCH_OF_1, 1, "a", "x"), (EPOCH_B, 0, "b", "y")]:
        log.put_fields(("grants", 0, epoch), grant(partition, node_, incarnation))


def _sessions_before_death(log: RawLog) -> None:
    log.session(0, "Claim", epoch=EPOCH_A, node="a", incarnation="x")
    log.session(10, "Open", nonce=b"n1", check="aaaaaa", group=0, member=0, payload={"word": "hello"})
    log.session(20, "Open", nonce=b"n2", check="bbbbbb", group=0, member=1)
    log.session(30, "Request", session=10, nonce=b"n3", tokens=i4(5, 6, 7), sampling={"max_tokens": 6})
    log.session(40, "Span", **span(10, 30, EPOCH_A, 0, [10, 11]))
    log.session(50, "Request", session=20, nonce=b"n4", tokens=i4(5, 6, 7), sampling={"max_tokens": 6})
    log.session(60, "Span", **span(20, 50, EPOCH_A, 0, [20, 21]))


def _sessions_after_death(log: RawLog) -> None:
    log.session(70, "Claim", epoch=EPOCH_B, node="b", incarnation="y", cause="dead")
    log.session(80, "Span", **span(10, 30, EPOCH_A, 2, [99]))
    log.session(90, "Span", **span(10, 30, EPOCH_B, 2, [12]))
    log.session(100, "Span", **span(10, 30, EPOCH_B, 3, [13], finish="stop"))
    log.session(110, "Span", **span(20, 50, EPOCH_B, 2, [22, 23], finish="stop"))
    log.session(120, "Request", session=10, nonce=b"n5", tokens=i4(8), base=30, base_length=7, sampling={"max_tokens": 6})
    log.session(130, "Span", **span(10, 120, EPOCH_B, 0, [30, 31]))
    log.session(140, "Cancel", session=10, request=120)
    log.session(150, "Close", session=10, nonce=b"n6", reward=0.5)
    log.session(160, "Close", session=20, nonce=b"n7", reward=1.0)


def _other_sessions(log: RawLog) -> None:
    log.session(180, "Open", nonce=b"n8", check="cccccc", purpose="eval", group=1, member=0)
    log.session(190, "Request", session=180, nonce=b"n9", tokens=i4(5), sampling={"max_tokens": 6})
    log.session(200, "Span", **span(180, 190, EPOCH_B, 0, [50], finish="stop"))
    log.session(210, "Close", session=180, idle=True, seen=200)
    log.session(220, "Open", nonce=b"n10", check="dddddd", group=2, member=0)
    log.session(230, "Close", session=220, nonce=b"n11", outcome="agent failed")
    log.session(250, "Claim", epoch=EPOCH_B, node="b", incarnation="y", cause="dead")
    log.session(0, "Claim", partition=1, epoch=EPOCH_OF_1, node="a", incarnation="x")
    log.session(10, "Open", partition=1, nonce=b"m1", check="eeeeee", group=3, member=0)
    log.session(20, "Request", partition=1, session=10, nonce=b"m2", tokens=i4(5, 6), sampling={"max_tokens": 6})
    log.session(30, "Span", partition=1, **span(10, 20, EPOCH_OF_1, 0, [40, 41]))
    log.session(40, "Span", partition=1, **span(10, 20, EPOCH_OF_1, 2, [42], version=1, finish="stop"))
    log.session(50, "Close", partition=1, session=10, nonce=b"m3", reward=1.0)


def _trajectories(log: RawLog) -> None:
    first = [
        node(30, [5, 6, 7], [10, 11, 12, 13], "stop"),
        node(120, [8], [30, 31], "cancelled", mask=0, parent=0, parent_length=7),
    ]
    given: Fields = {"check": "aaaaaa", "group": 0, "member": 0, "payload": {"word": "hello"}, "reward": 0.5, "nodes": first}
    second = [node(50, [5, 6, 7], [20, 21, 22, 23], "stop")]
    log.put("trajectories", 0, 0, "Trajectory", session=10, close=150, **given)
    log.put("trajectories", 0, 10, "Trajectory", session=20, close=160, check="bbbbbb", group=0, member=1, reward=1.0, nodes=second)
    log.put("trajectories", 0, 20, "Trajectory", session=10, close=150, **given)
    log.put(
        "trajectories", 0, 30, "Trajectory", session=180, close=210, check="cccccc", purpose="eval", group=1, member=0,
        nodes=[node(190, [5], [50], "stop")],
    )
    log.put("trajectories", 0, 40, "Trajectory", session=220, close=230, check="dddddd", group=2, member=0, outcome="agent failed")
    third = [node(20, [5, 6], [40, 41, 42], "stop", versions=[0, 0, 1])]
    log.put("trajectories", 1, 0, "Trajectory", session=10, close=50, check="eeeeee", group=3, member=0, reward=1.0, nodes=third)
    for raw in [raw for where, raw in log.records.items() if where[0] == "trajectories"]:
        raw.timestamp_ms = 1_000_005 + 10 * raw.fields["close"]  # soon after its Close
    log.records["trajectories", 0, 20].timestamp_ms += 500  # a duplicate of another assembler
    for partition, offset, trajectory in [(0, 0, 0), (0, 10, 10), (0, 20, 30), (1, 0, 0)]:
        scored = log.at("trajectories", partition, trajectory)
        same = {name: scored[name] for name in ("session", "purpose", "group") if name in scored}
        log.put("scores", partition, offset, "Score", trajectory=trajectory, rule="letters", value=0.5, **same)


def _training(log: RawLog, folder: Path) -> None:
    log.put("training", 0, 0, "Run", run="r", write=b"0" * 16)
    log.put("training", 0, 1, "WeightVersion", write=b"0" * 16, **version_fields(folder, 0))
    log.put(
        "training", 0, 10, "Step", write=b"1" * 16, step=1, version=0, published=1, groups_trained=[0], trained_tokens=8,
        plan={
            "places": [place(0, 0, 10), place(0, 10, 20)], "rows": [row(0, [0], [7], (3, 7)), row(1, [0], [7], (3, 7))],
            "micro_batches": [[0], [1]], "mini_batches": [[0, 1]], "epochs": 2,
        },
        consumed={"watermarks": [mark(0, 40, 210, 30)], "groups_below": 2, "tasks": {0: 20, 1: 30}},
        weights_sha256=weights_sha256(1),
    )
    log.put("training", 0, 11, "WeightVersion", write=b"1" * 16, step=1, **version_fields(folder, 1))
    log.put(
        "training", 0, 20, "Drops", drops=[{"place": place(0, 40, 220), "reason": "empty", "group": 2}], groups=[2],
        consumed={"watermarks": [mark(0, 41, 230, 30)], "groups_below": 3, "tasks": {0: 20, 1: 30, 2: 40}},
    )
    log.put(
        "training", 0, 30, "Step", write=b"2" * 16, step=2, version=1, published=2, groups_trained=[3], trained_tokens=3, staleness=1,
        plan={
            "places": [place(1, 0, 10)], "rows": [row(0, [0], [5], (2, 5))], "micro_batches": [[0]], "mini_batches": [[0]],
        },
        consumed={"watermarks": [mark(0, 41, 230, 30), mark(1, 1, 50, 1)], "groups_below": 4, "tasks": {0: 20, 1: 30, 2: 40, 3: 50}},
        weights_sha256=weights_sha256(2),
    )
    log.put("training", 0, 31, "WeightVersion", write=b"2" * 16, step=2, **version_fields(folder, 2))


def tensors(version: int) -> dict[str, numpy.ndarray]:
    return {"b": numpy.array([version], "<f4"), "a.weight": numpy.arange(6, dtype="<f4").reshape(2, 3) + version}


def weights_sha256(version: int) -> str:
    """By hand: the lines and bytes of the two tensors, in the order of names."""
    held = tensors(version)
    first = b"a.weight float32 2x3\n" + struct.pack("<6f", *(version + value for value in range(6)))
    assert first.endswith(held["a.weight"].tobytes())
    return hashlib.sha256(first + b"b float32 1\n" + struct.pack("<f", version)).hexdigest()


def version_fields(folder: Path, version: int) -> Fields:
    """Write the file of a version with safetensors' own writer; answer the fields of its WeightVersion."""
    content = save(tensors(version))
    digest = hashlib.sha256(content).hexdigest()
    path = folder / f"{digest}.safetensors"
    path.write_bytes(content)
    return {
        "version": version, "files": [{"uri": path.as_uri(), "sha256": digest, "bytes": len(content)}],
        "weights_sha256": weights_sha256(version), "tokenizer_sha256": "t", "template_sha256": "p",
    }
