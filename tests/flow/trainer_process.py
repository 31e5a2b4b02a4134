"""A trainer in a process of its own: `python -m tests.flow.trainer_process BOOTSTRAP NAMESPACE SETTINGS_AS_JSON`."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from streams.kafka import KafkaBroker
from streams.log import Log
from streams.service import run_process
from trainer.service import role
from trainer.settings import TrainerSettings


def main() -> int:
    bootstrap, namespace, settings = sys.argv[1:]

    @asynccontextmanager
    async def log_of(name: str) -> AsyncIterator[Log]:
        yield Log(KafkaBroker(bootstrap, client_id=name), namespace, name)

    return run_process(role(TrainerSettings.model_validate_json(settings)), log_of, role="trainer")


if __name__ == "__main__":
    sys.exit(main())
