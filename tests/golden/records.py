"""One example of every record type, as it is written by hand into msgpack, and as the record that it means.

`WIRE` is what stood on the wire when a schema was published: rows are added, never changed. A record that grows a field keeps its old row.
"""

from __future__ import annotations

from typing import Any

from schemas.deadletter import DeadLetter, Settlement
from schemas.grant import Grant, Role
from schemas.node import Control, NodeStatus, Tick
from schemas.record import Record
from schemas.score import Score
from schemas.session import Cancel, Claim, Close, Open, Request, Sampling
from schemas.span import Span
from schemas.task import Task
from schemas.training import Consumed, Dropped, Drops, Place, Plan, Row, Run, Step, Watermark, WeightFile, WeightVersion
from schemas.trajectory import Node, Trajectory

ONE_TWO = b"\x01\x00\x00\x00\x02\x00\x00\x00"
HALVES = b"\x00\x00\x00\xbf\x00\x00\x00\xbf"

SAMPLING: dict[str, Any] = {"max_tokens": 6, "temperature": 0.5, "seed": 3, "stop_token_ids": [2]}
PLACE: dict[str, Any] = {"partition": 1, "offset": 4, "session": 9}
CONSUMED: dict[str, Any] = {
    "watermarks": [{"partition": 1, "trajectory": 5, "close": 12, "decided": [7], "score": 3}],
    "groups_below": 2, "groups": [4], "tasks": {0: 8},
}

WIRE: list[tuple[str, str, dict[str, Any], Record]] = [
    ("tasks", "1.0", {"type": "Task", "number": 9, "group": 1, "member": 1, "members": 8, "payload": {"word": "hello"}, "seed": 5},
     Task(number=9, group=1, member=1, members=8, payload={"word": "hello"}, seed=5)),
    ("sessions", "1.0", {"type": "Open", "nonce": b"n", "check": "abc123", "group": 1, "member": 2, "payload": {"word": "hello"}},
     Open(nonce=b"n", check="abc123", group=1, member=2, payload={"word": "hello"})),
    ("sessions", "1.0",
     {"type": "Request", "session": 9, "nonce": b"n", "tokens": ONE_TWO, "sampling": SAMPLING, "base": 10, "base_length": 3},
     Request(session=9, nonce=b"n", tokens=ONE_TWO, base=10, base_length=3,
             sampling=Sampling(max_tokens=6, temperature=0.5, seed=3, stop_token_ids=[2]))),
    ("sessions", "1.0", {"type": "Cancel", "session": 9, "request": 10}, Cancel(session=9, request=10)),
    ("sessions", "1.0", {"type": "Close", "session": 9, "nonce": b"n", "reward": 0.5}, Close(session=9, nonce=b"n", reward=0.5)),
    ("sessions", "1.0", {"type": "Claim", "epoch": 3, "node": "a", "incarnation": "i", "cause": "dead"},
     Claim(epoch=3, node="a", incarnation="i", cause="dead")),
    ("sessions", "1.0",
     {"type": "Span", "session": 9, "request": 10, "epoch": 3, "start": 0, "tokens": ONE_TWO, "logprobs": HALVES, "version": 4,
      "kv_version": 4, "finish": "stop"},
     Span(session=9, request=10, epoch=3, start=0, tokens=ONE_TWO, logprobs=HALVES, version=4, kv_version=4, finish="stop")),
    ("trajectories", "1.0",
     {"type": "Trajectory", "session": 9, "close": 14, "nodes": [
         {"request": 10, "prompt": 1, "tokens": ONE_TWO, "mask": b"\x00\x01", "logprobs": HALVES, "versions": ONE_TWO,
          "sampling": SAMPLING, "end": "stop"}]},
     Trajectory(session=9, close=14, nodes=[
         Node(request=10, prompt=1, tokens=ONE_TWO, mask=b"\x00\x01", logprobs=HALVES, versions=ONE_TWO, end="stop",
              sampling=Sampling(max_tokens=6, temperature=0.5, seed=3, stop_token_ids=[2]))])),
    ("scores", "1.0", {"type": "Score", "trajectory": 4, "session": 9, "rule": "letters", "value": 0.6},
     Score(trajectory=4, session=9, rule="letters", value=0.6)),
    ("training", "1.0", {"type": "Run", "run": "demo", "settings": {"seed": 1}}, Run(run="demo", settings={"seed": 1})),
    ("training", "1.0",
     {"type": "WeightVersion", "version": 1, "step": 1, "files": [{"uri": "file:///w", "sha256": "aa", "bytes": 5}],
      "weights_sha256": "bb", "tokenizer_sha256": "cc", "template_sha256": "dd"},
     WeightVersion(version=1, step=1, files=[WeightFile(uri="file:///w", sha256="aa", bytes=5)], weights_sha256="bb",
                   tokenizer_sha256="cc", template_sha256="dd")),
    ("training", "1.0",
     {"type": "WeightVersion", "version": 3, "step": 2, "files": [{"uri": "file:///w", "sha256": "aa", "bytes": 5}],
      "weights_sha256": "bb", "tokenizer_sha256": "cc", "template_sha256": "dd", "again_from": 0, "optimizer_sha256": "ee",
      "numerics": {"threads": "2"}, "files_from": 2},
     WeightVersion(version=3, step=2, files=[WeightFile(uri="file:///w", sha256="aa", bytes=5)], weights_sha256="bb",
                   tokenizer_sha256="cc", template_sha256="dd", again_from=0, optimizer_sha256="ee", numerics={"threads": "2"},
                   files_from=2)),
    ("training", "1.0",
     {"type": "Step", "step": 1, "version": 0, "published": 1, "weights_sha256": "bb", "consumed": CONSUMED,
      "plan": {"places": [PLACE], "micro_batches": [[0]], "mini_batches": [[0]],
               "rows": [{"place": 0, "nodes": [0], "stops": [2], "train_from": [1], "train_to": [2], "advantage": 0.5}]}},
     Step(step=1, version=0, published=1, weights_sha256="bb",
          plan=Plan(places=[Place(partition=1, offset=4, session=9)], micro_batches=[[0]], mini_batches=[[0]],
                    rows=[Row(place=0, nodes=[0], stops=[2], train_from=[1], train_to=[2], advantage=0.5)]),
          consumed=Consumed(watermarks=[Watermark(partition=1, trajectory=5, close=12, decided=[7], score=3)],
                            groups_below=2, groups=[4], tasks={0: 8}))),
    ("training", "1.0", {"type": "Drops", "drops": [{"place": PLACE, "reason": "empty"}], "groups": [4], "consumed": {}},
     Drops(drops=[Dropped(place=Place(partition=1, offset=4, session=9), reason="empty")], groups=[4], consumed=Consumed())),
    ("nodes", "1.0", {"type": "NodeStatus", "node": "a", "incarnation": "i", "tags": ["rollout"], "state": "serving", "partitions": [1]},
     NodeStatus(node="a", incarnation="i", tags=["rollout"], state="serving", partitions=[1])),
    ("nodes", "1.0",
     {"type": "NodeStatus", "node": "a", "incarnation": "i", "tags": ["rollout"], "state": "serving", "own_s": 0.5, "first_token_s": 0.25},
     NodeStatus(node="a", incarnation="i", tags=["rollout"], state="serving", own_s=0.5, first_token_s=0.25)),
    ("nodes", "1.0",
     {"type": "NodeStatus", "node": "t", "incarnation": "i", "tags": [], "state": "training", "hosts": ["a"], "ready_groups": 4},
     NodeStatus(node="t", incarnation="i", tags=[], state="training", hosts=["a"], ready_groups=4)),
    ("nodes", "1.0", {"type": "Tick", "scheduler": "s", "number": 3}, Tick(scheduler="s", number=3)),
    ("nodes", "1.0", {"type": "Control", "command": "drain", "node": "a"}, Control(command="drain", node="a")),
    ("grants", "1.0", {"type": "Grant", "partition": 3, "node": "a", "incarnation": "i", "cause": "moved"},
     Grant(partition=3, node="a", incarnation="i", cause="moved")),
    ("grants", "1.0", {"type": "Role", "node": "a", "role": "train"}, Role(node="a", role="train")),
    ("grants", "1.0", {"type": "Role", "node": "a", "role": "rollout", "asleep": True}, Role(node="a", role="rollout", asleep=True)),
    ("deadletter", "1.0", {"type": "DeadLetter", "topic": "sessions", "partition": 1, "offset": 5, "reason": "r", "reader": "gateway"},
     DeadLetter(topic="sessions", partition=1, offset=5, reason="r", reader="gateway")),
    ("deadletter", "1.0", {"type": "Settlement", "letter": 7, "how": "discarded", "reason": "a test"},
     Settlement(letter=7, how="discarded", reason="a test")),
]
