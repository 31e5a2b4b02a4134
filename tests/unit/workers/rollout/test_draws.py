from __future__ import annotations

from schemas.session import Sampling
from workers.rollout.engines.base import Job, JobId
from workers.rollout.engines.draws import Draws, draws_of

KNOWN = (0x16554D9ECA36314C, 0xDB20FE9D672D0FDC, 0xD7E772CEE186176B, 0x7E68B68AEC7BA23B)
"""Philox4x64-10 of counter 0 and key 0, from the known answers published with Random123."""


def job(seed: int | None, *, partition: int = 0, request: int = 5, epoch: int = 1) -> Job:
    return Job(JobId(partition, request, epoch), [1], Sampling(max_tokens=4, seed=seed))


def test_numbers_are_those_of_the_published_generator() -> None:
    draws = Draws((0, 0))
    assert [draws.at(index) for index in range(4)] == [(word >> 11) / 2**53 for word in KNOWN]


def test_a_number_does_not_depend_on_what_was_asked_before() -> None:
    in_order = Draws((7, 0))
    numbers = [in_order.at(index) for index in range(300)]
    assert [Draws((7, 0)).at(index) for index in (0, 1, 31, 32, 33, 130, 299)] == [numbers[index] for index in (0, 1, 31, 32, 33, 130, 299)]
    assert all(0.0 <= number < 1.0 for number in numbers)
    assert len(set(numbers)) == 300


def test_a_seed_decides_and_without_one_the_request_does() -> None:
    same_seed = {draws_of(job(3, request=request)).at(9) for request in (1, 2)}
    unseeded = {draws_of(job(None, partition=partition, request=request)).at(9) for partition in (0, 1) for request in (0, 1, 3)}
    assert len(same_seed) == 1
    assert len(unseeded) == 6
    assert not unseeded & {draws_of(job(seed)).at(9) for seed in (0, 1, 3)}


def test_the_next_owner_draws_alike() -> None:
    assert draws_of(job(None, epoch=1)).at(2) == draws_of(job(None, epoch=8)).at(2)


def test_any_integer_is_a_seed() -> None:
    assert len({draws_of(job(seed)).at(0) for seed in (-1, 0, 2**63, 2**64 + 5)}) == 4
