"""The records as the audit knows them: field names, kinds and defaults, copied by hand from the docstrings of `schemas`.

Deliberately a second statement of the same facts: if a default changes in `schemas`, old logs read differently there and not here.
A field whose default is REQUIRED must be present. A kind that is a shape's name means a map of that shape; in a list, a list of such maps.
"""

from __future__ import annotations

from typing import Any, Final

REQUIRED: Final = object()

INTEGER = (int,)
NUMBER = (int, float)
TEXT = (str,)
BINARY = (bytes,)
FLAG = (bool,)
MAP = (dict,)
LIST = (list,)
NONE = type(None)

Kind = tuple[type, ...] | str | list[str]
Shape = dict[str, tuple[Kind, Any]]

TASK: Shape = {
    "number": (INTEGER, REQUIRED), "group": (INTEGER, REQUIRED), "member": (INTEGER, REQUIRED), "members": (INTEGER, REQUIRED),
    "purpose": (TEXT, "train"), "payload": (MAP, {}), "seed": (INTEGER, 0), "evaluates": ((int, NONE), None),
}
OPEN: Shape = {
    "nonce": (BINARY, REQUIRED), "check": (TEXT, REQUIRED), "purpose": (TEXT, "train"), "group": ((int, NONE), None),
    "member": ((int, NONE), None), "attempt": (INTEGER, 0), "payload": (MAP, {}), "model": (TEXT, "policy"), "gateway": (TEXT, ""),
}
SAMPLING: Shape = {
    "max_tokens": (INTEGER, REQUIRED), "temperature": (NUMBER, 1.0), "seed": ((int, NONE), None), "stop_token_ids": (LIST, []),
}
REQUEST: Shape = {
    "session": (INTEGER, REQUIRED), "nonce": (BINARY, REQUIRED), "tokens": (BINARY, REQUIRED), "sampling": ("Sampling", REQUIRED),
    "base": ((int, NONE), None), "base_length": (INTEGER, 0), "stream": (FLAG, False),
}
CANCEL: Shape = {"session": (INTEGER, REQUIRED), "request": (INTEGER, REQUIRED), "reason": (TEXT, "client left")}
CLOSE: Shape = {
    "session": (INTEGER, REQUIRED), "nonce": (BINARY, b""), "outcome": (TEXT, "ok"), "reward": ((int, float, NONE), None),
    "idle": (FLAG, False), "seen": (INTEGER, -1),
}
CLAIM: Shape = {
    "epoch": (INTEGER, REQUIRED), "node": (TEXT, REQUIRED), "incarnation": (TEXT, REQUIRED), "cause": (TEXT, "joined"),
    "reset": (FLAG, False),
}
SPAN: Shape = {
    "session": (INTEGER, REQUIRED), "request": (INTEGER, REQUIRED), "epoch": (INTEGER, REQUIRED), "start": (INTEGER, REQUIRED),
    "tokens": (BINARY, REQUIRED), "logprobs": (BINARY, REQUIRED), "version": (INTEGER, REQUIRED), "kv_version": (INTEGER, REQUIRED),
    "finish": ((str, NONE), None), "detail": (TEXT, ""), "engine_ms": (NUMBER, 0.0), "auxiliary": (LIST, []),
}
NODE: Shape = {
    "request": (INTEGER, REQUIRED), "parent": (INTEGER, -1), "parent_length": (INTEGER, 0), "prompt": (INTEGER, REQUIRED),
    "tokens": (BINARY, REQUIRED), "mask": (BINARY, REQUIRED), "logprobs": (BINARY, REQUIRED), "versions": (BINARY, REQUIRED),
    "sampling": ("Sampling", REQUIRED), "end": (TEXT, REQUIRED),
}
TRAJECTORY: Shape = {
    "session": (INTEGER, REQUIRED), "close": (INTEGER, REQUIRED), "check": (TEXT, ""), "purpose": (TEXT, "train"),
    "group": ((int, NONE), None), "member": ((int, NONE), None), "attempt": (INTEGER, 0), "payload": (MAP, {}),
    "model": (TEXT, "policy"), "outcome": (TEXT, "ok"), "reward": ((int, float, NONE), None), "nodes": (["Node"], []),
}
SCORE: Shape = {
    "trajectory": (INTEGER, REQUIRED), "session": (INTEGER, REQUIRED), "rule": (TEXT, REQUIRED), "rule_version": (INTEGER, 1),
    "value": (NUMBER, REQUIRED), "components": (MAP, {}), "status": (TEXT, "ok"), "detail": (TEXT, ""), "purpose": (TEXT, "train"),
    "group": ((int, NONE), None),
}
WEIGHT_FILE: Shape = {"uri": (TEXT, REQUIRED), "sha256": (TEXT, REQUIRED), "bytes": (INTEGER, REQUIRED)}
WEIGHT_VERSION: Shape = {
    "version": (INTEGER, REQUIRED), "step": ((int, NONE), None), "files": (["WeightFile"], REQUIRED), "weights_sha256": (TEXT, REQUIRED),
    "tokenizer_sha256": (TEXT, REQUIRED), "template_sha256": (TEXT, REQUIRED), "config": (MAP, {}),
    "again_from": ((int, NONE), None), "optimizer_sha256": (TEXT, ""), "numerics": (MAP, {}), "files_from": (INTEGER, 0),
}
RUN: Shape = {"run": (TEXT, REQUIRED), "settings": (MAP, {}), "started_ms": (INTEGER, 0)}
PLACE: Shape = {"partition": (INTEGER, REQUIRED), "offset": (INTEGER, REQUIRED), "session": (INTEGER, REQUIRED)}
ROW: Shape = {
    "place": (INTEGER, REQUIRED), "nodes": (LIST, REQUIRED), "stops": (LIST, REQUIRED), "train_from": (LIST, REQUIRED),
    "train_to": (LIST, REQUIRED), "advantage": (NUMBER, REQUIRED),
}
PLAN: Shape = {
    "places": (["Place"], REQUIRED), "rows": (["Row"], REQUIRED), "micro_batches": (LIST, REQUIRED), "mini_batches": (LIST, REQUIRED),
    "epochs": (INTEGER, 1), "seed": (INTEGER, 0),
}
DROPPED: Shape = {"place": ("Place", REQUIRED), "reason": (TEXT, REQUIRED), "group": ((int, NONE), None)}
WATERMARK: Shape = {
    "partition": (INTEGER, REQUIRED), "trajectory": (INTEGER, 0), "close": (INTEGER, -1), "decided": (LIST, []), "score": (INTEGER, 0),
}
CONSUMED: Shape = {"watermarks": (["Watermark"], []), "groups_below": (INTEGER, 0), "groups": (LIST, []), "tasks": (MAP, {})}
STEP: Shape = {
    "step": (INTEGER, REQUIRED), "version": (INTEGER, REQUIRED), "published": ((int, NONE), None), "plan": ("Plan", REQUIRED),
    "drops": (["Dropped"], []), "consumed": ("Consumed", REQUIRED), "groups_trained": (LIST, []), "groups_dropped": (LIST, []),
    "trained_tokens": (INTEGER, 0), "staleness": (INTEGER, 0), "weights_sha256": (TEXT, REQUIRED), "optimizer_sha256": (TEXT, ""),
    "numerics": (MAP, {}), "metrics": (MAP, {}),
}
DROPS: Shape = {"drops": (["Dropped"], []), "groups": (LIST, []), "consumed": ("Consumed", REQUIRED)}
GRANT: Shape = {
    "partition": (INTEGER, REQUIRED), "node": (TEXT, ""), "incarnation": (TEXT, ""), "cause": (TEXT, "joined"), "holder": (TEXT, ""),
    "reason": (TEXT, ""),
}
ROLE: Shape = {"node": (TEXT, REQUIRED), "role": (TEXT, REQUIRED), "asleep": (FLAG, False), "reason": (TEXT, "")}
DEAD_LETTER: Shape = {
    "topic": (TEXT, REQUIRED), "partition": (INTEGER, REQUIRED), "offset": (INTEGER, REQUIRED), "reason": (TEXT, REQUIRED),
    "reader": (TEXT, REQUIRED), "original_key": (BINARY, b""), "original_value": (BINARY, b""), "original_headers": (MAP, {}),
}
SETTLEMENT: Shape = {"letter": (INTEGER, REQUIRED), "how": (TEXT, REQUIRED), "reason": (TEXT, "")}

TOPIC_SHAPES: dict[str, dict[str, Shape]] = {
    "tasks": {"Task": TASK},
    "sessions": {"Open": OPEN, "Request": REQUEST, "Cancel": CANCEL, "Close": CLOSE, "Claim": CLAIM, "Span": SPAN},
    "trajectories": {"Trajectory": TRAJECTORY},
    "scores": {"Score": SCORE},
    "training": {"Run": RUN, "Step": STEP, "Drops": DROPS, "WeightVersion": WEIGHT_VERSION},
    "grants": {"Grant": GRANT, "Role": ROLE},
    "deadletter": {"DeadLetter": DEAD_LETTER, "Settlement": SETTLEMENT},
}
"""The record types of each topic that the audit reads."""

PART_SHAPES: dict[str, Shape] = {
    "Sampling": SAMPLING, "Node": NODE, "WeightFile": WEIGHT_FILE, "Place": PLACE, "Row": ROW, "Plan": PLAN, "Dropped": DROPPED,
    "Watermark": WATERMARK, "Consumed": CONSUMED,
}
"""Maps inside records."""

MAJOR = "1"
"""The only major of every type so far."""
