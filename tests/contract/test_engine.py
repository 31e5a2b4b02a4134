"""The contract of `workers.rollout.engines.base`, inherited by every engine, and what each adds to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from models.chat import CharacterChat
from models.config import Qwen2Config
from schemas.errors import EngineError
from schemas.session import Sampling
from schemas.training import WeightVersion
from workers.rollout.engines.base import Emission, Engine, Job, JobId
from workers.rollout.engines.paced import PacedEngine, paced_engine

pytestmark = pytest.mark.anyio

DEADLINE_S = 60.0
BATCH = 4


@dataclass
class Kind:
    """An engine to be held to the contract: how it is opened, and a version for a number."""

    open: Callable[[], AbstractAsyncContextManager[Engine]]
    version: Callable[[int], WeightVersion]


@dataclass
class Heard:
    """The consumer: everything that was emitted, in order."""

    log: list[Emission] = field(default_factory=list)
    has_ended: bool = False
    changed: anyio.Event = field(default_factory=anyio.Event)

    async def listen(self, engine: Engine) -> None:
        async for batch in engine.emissions():
            assert batch
            self.log += batch
            self.changed.set()
        self.has_ended = True
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(DEADLINE_S):
            while not condition():
                self.changed = anyio.Event()
                await self.changed.wait()

    async def more(self, count: int) -> None:
        enough = len(self.log) + count
        await self.until(lambda: len(self.log) >= enough)

    async def finished(self, *jobs: Job) -> None:
        await self.until(lambda: all(any(said.finish for said in self.of(job)) for job in jobs))

    def of(self, job: Job) -> list[Emission]:
        return [said for said in self.log if said.id == job.id]

    def tokens(self, job: Job) -> list[int]:
        return [token for said in self.of(job) for token in said.tokens]

    def logprobs(self, job: Job) -> list[float]:
        return [logprob for said in self.of(job) for logprob in said.logprobs]

    def finish(self, job: Job) -> str | None:
        assert all(said.finish is None for said in self.of(job)[:-1]), "something followed a finish"
        return self.of(job)[-1].finish


@asynccontextmanager
async def heard_from(engine: Engine) -> AsyncIterator[Heard]:
    heard = Heard()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(heard.listen, engine)
        yield heard
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def serving(kind: Kind) -> AsyncIterator[tuple[Engine, Heard]]:
    async with kind.open() as engine, heard_from(engine) as heard:
        await engine.load(kind.version(0))
        yield engine, heard


def job(request: int, prefix: Sequence[int] = (1, 8, 9, 3), *, emitted: int = 0, epoch: int = 1, **sampling: Any) -> Job:
    given = {"max_tokens": 12, "seed": 100 + request} | sampling
    return Job(JobId(0, request, epoch), list(prefix), Sampling(**given), emitted)


def mixed(count: int) -> list[Job]:
    """Jobs of unlike lengths, budgets and temperatures."""
    return [
        job(50 + number, [1, *range(6, 7 + number % 9), 3], max_tokens=1 + number % 14, temperature=(1.0, 0.7, 0.0, 1.5)[number % 4])
        for number in range(count)
    ]


class EngineContract:
    """Inherit, and give a fixture `kind`."""

    async def test_a_job_waits_for_the_first_weights(self, kind: Kind) -> None:
        async with kind.open() as engine, heard_from(engine) as heard:
            assert engine.version == -1
            early = job(1)
            await engine.submit(early)
            assert (engine.load_now().running, engine.load_now().waiting) == (0, 1)
            assert heard.log == []
            await engine.load(kind.version(0))
            assert engine.version == 0
            await heard.finished(early)

    async def test_tokens_come_once_up_to_the_budget(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            jobs = [job(number, max_tokens=budget) for number, budget in enumerate((1, 2, 12))]
            for each in jobs:
                await engine.submit(each)
            await heard.finished(*jobs)
            assert [len(heard.tokens(each)) for each in jobs] == [1, 2, 12]
            assert {heard.finish(each) for each in jobs} == {"length"}
            assert all(len(said.tokens) == len(said.logprobs) for said in heard.log)
            assert {(said.version, said.kv_version) for said in heard.log} == {(0, 0)}

    async def test_a_stop_token_ends_a_job_and_is_its_last(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            free = job(1)
            await engine.submit(free)
            await heard.finished(free)
            stop = heard.tokens(free)[3]
            stopped = job(2, seed=free.sampling.seed, stop_token_ids=[stop])
            await engine.submit(stopped)
            await heard.finished(stopped)
            assert heard.tokens(stopped) == heard.tokens(free)[: heard.tokens(free).index(stop) + 1]
            assert heard.finish(stopped) == "stop"

    async def test_a_job_with_nothing_left_to_do_finishes_without_a_token(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            spent = job(1, [1, 8, 0, 1, 2], emitted=3, max_tokens=3)
            stopped = job(2, [1, 8, 0, 1, 2], emitted=3, stop_token_ids=[2])
            for each in (spent, stopped):
                await engine.submit(each)
            await heard.finished(spent, stopped)
            assert [(heard.tokens(each), heard.finish(each)) for each in (spent, stopped)] == [([], "length"), ([], "stop")]

    async def test_a_prompt_that_ends_with_a_stop_token_goes_on(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            asked = job(1, [1, 8, 2], stop_token_ids=[2])
            await engine.submit(asked)
            await heard.finished(asked)
            assert heard.tokens(asked)

    async def test_a_seed_gives_the_same_tokens_alone_and_in_a_crowd(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            alone, crowded = job(1, max_tokens=20), job(2, max_tokens=20, seed=101)
            await engine.submit(alone)
            await heard.finished(alone)
            crowd = mixed(20)
            for each in (*crowd[:10], crowded, *crowd[10:]):
                await engine.submit(each)
            await heard.finished(crowded, *crowd)
            assert heard.tokens(crowded) == heard.tokens(alone)
            assert heard.logprobs(crowded) == pytest.approx(heard.logprobs(alone), abs=1e-5)

    async def test_a_continued_job_draws_what_an_uninterrupted_one_draws(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            whole = job(1)
            await engine.submit(whole)
            await heard.finished(whole)
            tokens = heard.tokens(whole)
            for emitted in (1, 5, 11):
                rest = job(1, [*whole.prefix, *tokens[:emitted]], emitted=emitted, epoch=1 + emitted)
                await engine.submit(rest)
                await heard.finished(rest)
                assert heard.tokens(rest) == tokens[emitted:]
                assert heard.logprobs(rest) == pytest.approx(heard.logprobs(whole)[emitted:], abs=1e-5)

    async def test_the_next_owner_draws_alike_without_a_seed(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            first, again = job(1, seed=None), job(1, seed=None, epoch=2)
            for each in (first, again):
                await engine.submit(each)
            await heard.finished(first, again)
            assert heard.tokens(first) == heard.tokens(again)

    async def test_load_is_a_barrier_and_running_jobs_go_on(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            running = [job(number, max_tokens=400) for number in range(3)]
            for each in running:
                await engine.submit(each)
            for version in (1, 2):
                before = len(heard.log)
                await heard.more(12)
                await engine.load(kind.version(version))
                assert engine.version == version
                barrier = len(heard.log)
                assert {said.version for said in heard.log[before:barrier]} == {version - 1}
                await heard.more(3)
                assert {said.version for said in heard.log[barrier:]} == {version}
            assert all(said.kv_version == said.version for said in heard.log)
            await heard.finished(*running)
            assert [len(heard.tokens(each)) for each in running] == [400] * 3

    async def test_a_sleeping_engine_has_no_version_until_the_next_load(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            before, after, whole = job(1, max_tokens=400), job(2, max_tokens=100), job(3, max_tokens=100, seed=102)
            await engine.submit(before)
            await heard.more(3)
            await engine.abort(before.id)
            for _ in range(2):
                await engine.sleep()
            assert engine.version == -1
            await engine.submit(after)
            assert (engine.load_now().running, engine.load_now().waiting) == (0, 1)
            await engine.load(kind.version(1))
            await heard.finished(after)
            assert {said.version for said in heard.of(after)} == {1}
            await engine.submit(whole)
            await heard.finished(whole)
            assert heard.tokens(after) == heard.tokens(whole)

    async def test_an_engine_with_work_does_not_sleep(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            running = job(1, max_tokens=60)
            await engine.submit(running)
            with pytest.raises(EngineError, match="1 jobs are live"):
                await engine.sleep()
            await heard.finished(running)
            assert len(heard.tokens(running)) == 60

    async def test_an_engine_may_sleep_before_its_first_weights(self, kind: Kind) -> None:
        async with kind.open() as engine, heard_from(engine) as heard:
            await engine.sleep()
            asked = job(1)
            await engine.load(kind.version(0))
            await engine.submit(asked)
            await heard.finished(asked)

    async def test_no_token_comes_after_an_abort(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            aborted, waiting, other = job(1, max_tokens=400), job(2, max_tokens=400), job(9, max_tokens=60)
            for each in (aborted, *[job(number, max_tokens=400) for number in range(3, 6)], other, waiting):
                await engine.submit(each)
            await heard.until(lambda: len(heard.tokens(aborted)) >= 3)
            await engine.abort(aborted.id)
            stood = heard.of(aborted)
            for number in range(2, 6):
                await engine.abort(JobId(0, number, 1))
            await heard.finished(other)
            assert heard.of(aborted) == stood
            assert len(heard.tokens(other)) == 60
            assert (engine.load_now().running, engine.load_now().waiting) == (0, 0)

    async def test_aborting_an_unknown_or_finished_job_is_no_error(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            await engine.abort(JobId(3, 3, 3))
            done = job(1, max_tokens=1)
            await engine.submit(done)
            await heard.finished(done)
            await engine.abort(done.id)
            assert heard.finish(done) == "length"

    async def test_a_job_runs_once(self, kind: Kind) -> None:
        async with serving(kind) as (engine, _):
            await engine.submit(job(1, max_tokens=400))
            with pytest.raises(EngineError, match="runs already"):
                await engine.submit(job(1, max_tokens=400))

    async def test_everything_is_counted(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            jobs = mixed(30)
            for each in jobs:
                await engine.submit(each)
            load = engine.load_now()
            assert load.running + load.waiting >= 1
            await heard.finished(*jobs)
            load = engine.load_now()
            assert (load.running, load.waiting) == (0, 0)
            assert load.tokens == sum(len(said.tokens) for said in heard.log) == sum(each.sampling.max_tokens for each in jobs)

    async def test_closing_ends_the_emissions(self, kind: Kind) -> None:
        async with anyio.create_task_group() as tasks:
            heard = Heard()
            async with kind.open() as engine:
                tasks.start_soon(heard.listen, engine)
                await engine.load(kind.version(0))
                await engine.submit(job(1, max_tokens=400))
                await heard.until(lambda: len(heard.log) >= 1)
            await heard.until(lambda: heard.has_ended)
        with pytest.raises(EngineError, match="closed"):
            await engine.submit(job(2))
        with pytest.raises(EngineError, match="closed"):
            await engine.load(kind.version(1))


def numbered(version: int) -> WeightVersion:
    return WeightVersion(version=version, files=[], weights_sha256="", tokenizer_sha256="", template_sha256="")


class TestPaced(EngineContract):
    @pytest.fixture
    def kind(self) -> Kind:
        return Kind(lambda: paced_engine(2_000.0, 0.001), numbered)

    async def test_tokens_say_their_version_and_index(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            await engine.load(numbered(7))
            asked = job(1, [1, 8, 70_000, 70_001], emitted=2, max_tokens=5)
            await engine.submit(asked)
            await heard.finished(asked)
            assert heard.tokens(asked) == [70_002, 70_003, 70_004]
            assert heard.logprobs(asked) == [-2 / 8, -3 / 8, -4 / 8]

    async def test_a_stop_index_holds_under_any_version(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            await engine.load(numbered(3))
            asked = job(1, stop_token_ids=[4])
            await engine.submit(asked)
            await heard.finished(asked)
            assert (heard.tokens(asked)[-1], heard.finish(asked)) == (30_004, "stop")

    async def test_no_token_is_early(self) -> None:
        async with serving(Kind(lambda: paced_engine(100.0, 0.05), numbered)) as (engine, heard):
            asked, begun_s = job(1, max_tokens=6), anyio.current_time()
            await engine.submit(asked)
            await heard.finished(asked)
            assert anyio.current_time() - begun_s >= 0.05 + 5 / 100 - 0.001

    def test_an_impossible_rate_is_refused(self) -> None:
        with pytest.raises(ValueError, match="not possible"):
            PacedEngine(0.0, 0.0)


@pytest.mark.torch
class TestTorch(EngineContract):
    @pytest.fixture
    def kind(self, tmp_path: Path) -> Kind:
        return torch_kind(tmp_path, Qwen2Config(hidden_size=64, intermediate_size=96, num_key_value_heads=2, max_position_embeddings=512))

    @pytest.mark.timeout(300)  # the import of transformers alone is 20 s of CPU
    @pytest.mark.parametrize("by", ["own", "transformers"])
    async def test_logprobs_are_recomputed_under_the_version_of_each_token(self, kind: Kind, tmp_path: Path, by: str) -> None:
        """R9 and R11: a plain forward over the whole sequence, with the weights that each token is tagged with."""
        logits_of = {version: reference(tmp_path, kind.version(version), by) for version in range(3)}
        jobs = [
            job(number, [1, *range(6, 8 + 5 * number), 3], max_tokens=300, temperature=temperature)
            for number, temperature in enumerate((1.0, 0.7, 1.6, 0.0))
        ]
        async with serving(kind) as (engine, heard):
            for each in jobs:
                await engine.submit(each)
            for version in (1, 2):
                await heard.more(40)
                await engine.load(kind.version(version))
            await heard.finished(*jobs)
        assert {said.version for said in heard.log} == {0, 1, 2}
        for each in jobs:
            assert largest_difference(each, heard.of(each), logits_of) <= 1e-4

    async def test_temperature_zero_takes_the_most_likely_token(self, kind: Kind, tmp_path: Path) -> None:
        logits = reference(tmp_path, kind.version(0), "own")
        async with serving(kind) as (engine, heard):
            asked = job(1, temperature=0.0)
            await engine.submit(asked)
            await heard.finished(asked)
        sequence = [*asked.prefix, *heard.tokens(asked)]
        assert heard.tokens(asked) == logits(sequence).argmax(dim=-1)[len(asked.prefix) - 1 : -1].tolist()

    async def test_requests_without_a_seed_differ(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            jobs = [job(number, seed=None) for number in range(3)]
            for each in jobs:
                await engine.submit(each)
            await heard.finished(*jobs)
            assert len({tuple(heard.tokens(each)) for each in jobs}) == 3

    async def test_weights_that_are_not_what_the_log_says_change_nothing(self, kind: Kind, tmp_path: Path) -> None:
        async with serving(kind) as (engine, heard):
            good, small = kind.version(1), torch_kind(tmp_path / "small", Qwen2Config(hidden_size=8)).version(1)
            wrong = {
                "have digest": replace(good, weights_sha256="0" * 64),
                "cannot be read": replace(good, files=[replace(good.files[0], uri="file:///nowhere/x")]),
                "do not fit": small,
                "tokenizer": replace(good, tokenizer_sha256="another"),
            }
            for said, version in wrong.items():
                with pytest.raises(EngineError, match=said):
                    await engine.load(version)
            assert engine.version == 0
            asked = job(1)
            await engine.submit(asked)
            await heard.finished(asked)
            assert {said.version for said in heard.log} == {0}

    async def test_a_prompt_that_the_model_cannot_take_fails_alone(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            foreign, empty, long, good = job(1, [1, 58]), job(2, []), job(3, [6] * 512), job(4)
            for each in (foreign, empty, long, good):
                await engine.submit(each)
            await heard.finished(foreign, empty, long, good)
            assert [heard.finish(each) for each in (foreign, empty, long, good)] == ["failed"] * 3 + ["length"]
            assert "512" in heard.of(long)[0].detail

    async def test_the_models_length_ends_a_job(self, kind: Kind) -> None:
        async with serving(kind) as (engine, heard):
            asked = job(1, [6] * 508, max_tokens=100)
            await engine.submit(asked)
            await heard.finished(asked)
            assert (len(heard.tokens(asked)), heard.finish(asked)) == (4, "length")
            continued = job(2, [6] * 512, emitted=4, max_tokens=100)
            await engine.submit(continued)
            await heard.finished(continued)
            assert (heard.tokens(continued), heard.finish(continued)) == ([], "length")

    async def test_a_dead_thread_is_told_to_everyone(self, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
        from workers.rollout.engines.decode import DecodeBatch

        def fails(batch: DecodeBatch) -> list[Emission]:
            raise RuntimeError("out of memory")

        monkeypatch.setattr(DecodeBatch, "step", fails)
        async with kind.open() as engine:
            await engine.load(kind.version(0))
            await engine.submit(job(1))
            with anyio.fail_after(DEADLINE_S), pytest.raises(EngineError, match="RuntimeError: out of memory"):
                await anext(engine.emissions())
            with pytest.raises(EngineError, match="out of memory"):
                await engine.submit(job(2))
            with pytest.raises(EngineError, match="out of memory"):
                await engine.load(kind.version(1))

    async def test_sleep_frees_the_memory_of_weights_and_cache(self, kind: Kind) -> None:
        from workers.rollout.engines.torch import TorchEngine

        async with serving(kind) as (engine, heard):
            assert isinstance(engine, TorchEngine)
            asked = job(1)
            await engine.submit(asked)
            await heard.finished(asked)
            batch = engine._batch
            assert batch._cache._store.numel() > 0
            await engine.sleep()
            assert {parameter.device.type for parameter in batch._network.parameters()} == {"meta"}
            assert batch._cache._store.numel() == 0

    async def test_weights_without_a_distribution_fail_the_job_and_nothing_else(self, tmp_path: Path) -> None:
        torch = pytest.importorskip("torch")
        kind = torch_kind(tmp_path, Qwen2Config(hidden_size=16), spoil=lambda network: network.lm_head.weight.fill_(torch.nan))
        async with serving(kind) as (engine, heard):
            asked = job(1)
            await engine.submit(asked)
            await heard.finished(asked)
            assert (heard.tokens(asked), heard.finish(asked)) == ([], "failed")
            assert "version 0" in heard.of(asked)[0].detail


def torch_kind(folder: Path, config: Qwen2Config, spoil: Callable[[Any], object] = lambda network: None) -> Kind:
    """A model folder, and versions with random weights: large ones, so that versions differ much."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from models.qwen2 import initial
    from models.weights import weights_sha256, write_weights
    from workers.rollout.engines.torch import torch_engine

    chat = CharacterChat()
    folder.mkdir(exist_ok=True)
    config.write(folder)
    chat.save(folder)

    def version(number: int) -> WeightVersion:
        network = initial(config, seed=number)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.mul_(4.0)
            spoil(network)
        tensors = network.state_dict()
        return WeightVersion(
            version=number, files=[write_weights(folder / "weights", tensors)], weights_sha256=weights_sha256(tensors),
            tokenizer_sha256=chat.tokenizer_sha256, template_sha256=chat.template_sha256,
        )

    return Kind(lambda: torch_engine(folder, batch=BATCH), version)


def reference(folder: Path, version: WeightVersion, by: str) -> Callable[[Sequence[int]], Any]:
    """Tokens of one sequence -> logits float32[length, vocabulary], by a plain forward pass without a cache."""
    import torch

    from models.qwen2 import Qwen2
    from models.weights import fetch

    if by == "own":
        own = Qwen2(Qwen2Config.read(folder))
        own.load_state_dict(fetch(version))
        return lambda tokens: own(torch.tensor([tokens]), torch.arange(len(tokens))[None])[0].detach()
    transformers = pytest.importorskip("transformers", reason="transformers is not installed: the reference is missing")
    model = transformers.Qwen2ForCausalLM(transformers.Qwen2Config.from_pretrained(folder)).eval()
    model.load_state_dict(fetch(version))
    return lambda tokens: model(torch.tensor([tokens])).logits[0].detach()


def largest_difference(asked: Job, said: list[Emission], logits_of: dict[int, Callable[[Sequence[int]], Any]]) -> float:
    sequence = [*asked.prefix, *(token for each in said for token in each.tokens)]
    temperature = asked.sampling.temperature or 1.0
    by_version = {version: (logits(sequence) / temperature).log_softmax(dim=-1) for version, logits in logits_of.items()}
    place, differences = len(asked.prefix), []
    for each in said:
        for token, logprob in zip(each.tokens, each.logprobs, strict=True):
            differences.append(abs(float(by_version[each.version][place - 1, token]) - logprob))
            place += 1
    return max(differences)
