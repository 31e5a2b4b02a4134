from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from models.config import Qwen2Config  # noqa: E402
from models.qwen2 import Qwen2, initial  # noqa: E402
from schemas.session import Sampling  # noqa: E402
from workers.rollout.engines.base import Emission, Job, JobId  # noqa: E402
from workers.rollout.engines.decode import DecodeBatch  # noqa: E402

pytestmark = pytest.mark.torch

CONFIG = Qwen2Config(hidden_size=32, intermediate_size=48, num_attention_heads=2, num_key_value_heads=1)


def network() -> Qwen2:
    made = initial(CONFIG, seed=4)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4.0)
    return made


def job(number: int, prefix: list[int], max_tokens: int, temperature: float = 1.0) -> Job:
    return Job(JobId(0, number, 1), prefix, Sampling(max_tokens=max_tokens, temperature=temperature))


def run(batch: DecodeBatch) -> list[Emission]:
    emissions: list[Emission] = []
    with torch.inference_mode():
        while not batch.is_idle:
            emissions += batch.step()
    return emissions


def started(limit: int) -> DecodeBatch:
    batch = DecodeBatch(Qwen2(CONFIG), limit)
    batch.swap(network().state_dict(), 0)
    return batch


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_are_drawn_from_the_tempered_distribution(temperature: float) -> None:
    """3,000 first tokens after one prompt: frequencies against the softmax of a plain forward pass."""
    batch, count = started(64), 3_000
    for number in range(count):
        batch.add(job(number, [1, 9, 3], 1, temperature))
    drawn = Counter(said.tokens[0] for said in run(batch))
    with torch.no_grad():
        expected = (network()(torch.tensor([[1, 9, 3]]), torch.arange(3)[None])[0, -1] / temperature).softmax(dim=-1).tolist()
    distance = sum(abs(drawn[token] / count - expected[token]) for token in range(CONFIG.vocab_size)) / 2
    # A frequency strays from its p by sqrt(p / 3000) or less on average: for 58 of them half the sum is below 0.07, whatever the p.
    assert distance < 0.07
    assert max(expected) < 0.95, "the distribution is too sharp to test anything"


def test_new_rows_are_prefilled_together_those_of_like_length_in_one_pass() -> None:
    batch = started(8)
    for number in range(6):
        batch.add(job(number, [1] * (4 + number % 3), 2))  # 4, 5, 6 tokens: one pass
    batch.add(job(9, [1] * 100, 2))
    run(batch)
    assert batch.counters.prefills == 2
    assert batch.counters.prefilled_tokens == 2 * (4 + 5 + 6) + 100
    assert batch.counters.tokens == 14


def test_the_batch_is_bounded_and_the_rest_waits_in_order() -> None:
    batch = started(2)
    for number in range(5):
        batch.add(job(number, [1, 6 + number], 1))
    with torch.inference_mode():
        steps = [[said.id.request for said in batch.step()] for _ in range(3)]
    assert steps == [[0, 1], [2, 3], [4]]
    assert batch.is_idle


def test_dropping_a_row_leaves_the_others_as_they_were() -> None:
    jobs = [job(number, [1, *range(6, 8 + number)], 12) for number in range(5)]
    undisturbed, disturbed = started(5), started(5)
    for each in jobs:
        undisturbed.add(each)
        disturbed.add(each)
    with torch.inference_mode():
        before = disturbed.step()
        disturbed.drop(jobs[1].id)
    after = [*before, *run(disturbed)]
    expected = run(undisturbed)
    for each in (jobs[0], *jobs[2:]):
        assert [said.tokens for said in after if said.id == each.id] == [said.tokens for said in expected if said.id == each.id]
    assert [said for said in after if said.id == jobs[1].id] == [said for said in before if said.id == jobs[1].id]


def test_a_dropped_row_that_waits_never_starts() -> None:
    batch = started(1)
    for number in range(3):
        batch.add(job(number, [1, 6], 1))
    batch.drop(JobId(0, 1, 1))
    assert [said.id.request for said in run(batch)] == [0, 2]


def test_running_rows_keep_their_places_before_waiting_ones_after_a_swap() -> None:
    batch = started(2)
    for number in range(3):
        batch.add(job(number, [1, 6 + number], 2))
    with torch.inference_mode():
        first = batch.step()
        batch.swap(network().state_dict(), 1)
        second = batch.step()
    assert [said.id.request for said in first] == [said.id.request for said in second] == [0, 1]
    assert [said.version for said in second] == [1, 1]


def test_long_rows_outgrow_the_first_cache_without_a_change() -> None:
    """One run of 150 tokens over two growths of the cache, against one prefill of the same tokens."""
    batch = started(1)
    asked = job(1, [1, 6], 150)
    batch.add(asked)
    tokens = [said.tokens[0] for said in run(batch)]
    again = started(1)
    again.add(replace(asked, prefix=[1, 6, *tokens[:149]], emitted=149))
    assert [said.tokens for said in run(again)] == [[tokens[149]]]
