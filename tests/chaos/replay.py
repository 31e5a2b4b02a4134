"""Makes the weights of every Step again, in a process of its own: `python -m tests.chaos.replay BOOTSTRAP NAMESPACE` prints them as JSON.

The weights are those of the trainer without torch: the digest of all plans so far, in their order.
"""

from __future__ import annotations

import json
import sys

import anyio

from schemas.topics import TRAINING
from schemas.training import Step
from streams.kafka import KafkaBroker
from streams.log import Log
from tests.unit.trainer.runs import after


async def replay(bootstrap: str, namespace: str) -> dict[int, str]:
    """The digest after each Step."""
    log, weights, made = Log(KafkaBroker(bootstrap, client_id="replay"), namespace, "replay"), "initial", {}
    async with log.follow_all(TRAINING) as reader:
        for entry in await reader.read_to_end([0]):
            if isinstance(entry.record, Step):
                weights = made[entry.record.step] = after(weights, entry.record.plan)
    return made


if __name__ == "__main__":
    print(json.dumps(anyio.run(replay, sys.argv[1], sys.argv[2])))
