"""The torch engine: `DecodeBatch` in a thread of its own beside the event loop.

The thread obeys commands between two steps and posts the tokens of each step to the loop in one piece. Everything that is delivered
passes the outbox on the loop, in the order in which the thread did it; so `version` changes at one point of that stream: the barrier.

One torch thread: the engine shares its machine with others, and bits depend on the thread count.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import torch

from models.chat import Chat, load_chat
from models.config import Qwen2Config
from models.qwen2 import Qwen2
from models.weights import fetch
from schemas.errors import EngineError
from schemas.training import WeightVersion
from workers.rollout.engines.base import Emission, Engine, Job, JobId, Load
from workers.rollout.engines.decode import DecodeBatch
from workers.rollout.engines.ending import ending
from workers.rollout.engines.outbox import Outbox

__all__ = ["TorchEngine", "torch_engine"]

BARRIER_S = 60.0
"""Longest time until the decoding thread comes between two steps."""
CLOSE_DEADLINE_S = 10.0

Command = Callable[[DecodeBatch], None]


@asynccontextmanager
async def torch_engine(model_folder: Path, *, batch: int = 32) -> AsyncIterator[Engine]:
    """An engine for the network that `model_folder` describes, with at most `batch` rows at a time; weights come by `load`.

    :raises UsageError: the folder lacks its config or its tokenizer.
    :raises EngineError: the thread did not stop within its deadline.
    """
    config, chat = Qwen2Config.read(model_folder), load_chat(model_folder)
    engine = TorchEngine(config, chat, batch)
    engine.start()
    try:
        yield engine
    finally:
        with anyio.CancelScope(shield=True):
            await engine.close()


class TorchEngine:
    """The loop's side of the engine. Open it with `torch_engine`."""

    def __init__(self, config: Qwen2Config, chat: Chat, batch: int) -> None:
        self._config, self._chat = config, chat
        self._version = -1
        self._outbox = Outbox()
        self._passed = anyio.Event()
        self._barrier = anyio.Lock()
        self._batch = DecodeBatch(Qwen2(config), batch)
        self._thread = _DecodeThread(self._batch, self._outbox.post, self._died)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def close(self) -> None:
        """End the iteration of emissions and stop the thread.

        :raises EngineError: it is still in a step after its deadline.
        """
        self._outbox.close()
        self._thread.commands.put(None)
        await anyio.to_thread.run_sync(self._thread.join, CLOSE_DEADLINE_S)
        if self._thread.is_alive():
            raise EngineError(f"the decoding thread did not stop within {CLOSE_DEADLINE_S:.0f} s")

    @property
    def version(self) -> int:
        """The version of every token that is delivered from now on; −1 before the first `load` and while the engine sleeps."""
        return self._version

    def load_now(self) -> Load:
        """Counters of this moment."""
        counters, running = self._batch.counters, self._batch.running
        facts = {"steps": counters.steps, "prefills": counters.prefills, "prefilled_tokens": counters.prefilled_tokens}
        return Load(running=running, waiting=max(0, self._outbox.live - running), tokens=counters.tokens, facts=dict(facts))

    async def load(self, version: WeightVersion) -> None:
        """Read and verify the files beside the running decode, then replace the weights between two steps.

        :raises EngineError: a file, a digest, the tokenizer or a shape is not what it must be, and the old weights stay; or the engine
            is dead.
        """
        self._outbox.require_alive()
        self._require_same_chat(version)
        async with self._barrier:
            tensors = await anyio.to_thread.run_sync(fetch, version)
            self._batch.require_fit(tensors)
            await self._between_steps(lambda batch: batch.swap(tensors, version.version), version.version)

    async def sleep(self) -> None:
        """Free weights and cache between two steps.

        :raises EngineError: a job is live; or the engine is dead.
        """
        async with self._barrier:
            self._outbox.require_idle()
            await self._between_steps(DecodeBatch.sleep, -1)

    async def submit(self, job: Job) -> None:
        """Take a job; it waits for a place in the batch, and for the first weights.

        :raises EngineError: the engine is dead, or the job runs already.
        """
        self._outbox.open(job.id)
        end = self._end_at_once(job)
        if end is None:
            self._thread.commands.put(lambda batch: batch.add(job))
        else:
            self._outbox.post([end])

    async def abort(self, job: JobId) -> None:
        """End a job; what it emitted and nobody read yet is not delivered any more."""
        if self._outbox.drop(job):
            self._thread.commands.put(lambda batch: batch.drop(job))

    def emissions(self) -> AsyncIterator[list[Emission]]:
        """All emissions until the engine closes.

        :raises EngineError: the thread died; the cause is chained.
        """
        return self._outbox.batches()

    def _end_at_once(self, job: Job) -> Emission | None:
        version = max(0, self._version)
        if not job.prefix or not all(0 <= token < self._config.vocab_size for token in job.prefix):
            detail = f"the prefix of {len(job.prefix)} tokens is empty or leaves the vocabulary of {self._config.vocab_size}"
            return Emission(job.id, [], [], version, version, "failed", detail)
        if finish := ending(job.sampling, job.emitted, job.prefix[-1]):
            return Emission(job.id, [], [], version, version, finish)
        longest = self._config.max_position_embeddings
        if len(job.prefix) < longest:
            return None
        if job.emitted:
            return Emission(job.id, [], [], version, version, "length")
        detail = f"the prompt has {len(job.prefix)} tokens, the model takes fewer than {longest}"
        return Emission(job.id, [], [], version, version, "failed", detail)

    def _require_same_chat(self, version: WeightVersion) -> None:
        announced = (version.tokenizer_sha256, version.template_sha256)
        if announced != (self._chat.tokenizer_sha256, self._chat.template_sha256):
            raise EngineError(f"version {version.version} was trained with another tokenizer or template than the model folder holds")

    async def _between_steps(self, change: Command, version: int) -> None:
        """Let the thread change its weights, to those of `version`. What it posted before is delivered under the old version."""
        self._passed, loop = anyio.Event(), asyncio.get_running_loop()

        def obey(batch: DecodeBatch) -> None:
            change(batch)
            loop.call_soon_threadsafe(self._serve, version)

        self._thread.commands.put(obey)
        with anyio.move_on_after(BARRIER_S) as scope:
            await self._passed.wait()
        if scope.cancelled_caught:
            what = f"take version {version}" if version >= 0 else "free its weights"
            raise EngineError(f"the decoding thread did not {what} within {BARRIER_S:.0f} s")
        self._outbox.require_alive()

    def _serve(self, version: int) -> None:
        self._version = version
        self._passed.set()

    def _died(self, error: EngineError) -> None:
        self._outbox.fail(error)
        self._passed.set()


class _DecodeThread(threading.Thread):
    """Steps while there is something to do, obeys commands in between; None stops it."""

    def __init__(self, batch: DecodeBatch, post: Callable[[Sequence[Emission]], None], died: Callable[[EngineError], None]) -> None:
        super().__init__(name="decode", daemon=True)
        self.commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._batch, self._post, self._died = batch, post, died
        self._loop = asyncio.get_running_loop()

    def run(self) -> None:
        """Decode until told to stop; whatever goes wrong reaches the consumer of emissions as EngineError."""
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                while self._obey():
                    self._loop.call_soon_threadsafe(self._post, self._batch.step())
        except Exception as cause:  # the edge of a thread: nobody above would hear of it
            error = EngineError(f"the decoding thread died: {type(cause).__name__}: {cause}")
            error.__cause__ = cause
            self._loop.call_soon_threadsafe(self._died, error)

    def _obey(self) -> bool:
        """Do all commands that wait; with nothing to decode, wait for one. False: stop."""
        while self._batch.is_idle or not self.commands.empty():
            command = self.commands.get()
            if command is None:
                return False
            command(self._batch)
        return True
