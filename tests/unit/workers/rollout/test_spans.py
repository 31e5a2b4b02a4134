"""How tokens become spans: by hand, and on random emissions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from schemas.arrays import unpack_f4, unpack_i4
from schemas.span import Finish, Span
from workers.rollout.engines.base import Emission, JobId
from workers.rollout.spans import OwnedSpan, SpanBuffers

JOB, OTHER = JobId(3, 20, 7), JobId(4, 21, 8)


def emit(*tokens: int, version: int = 1, kv_version: int = 1, finish: Finish | None = None, job: JobId = JOB) -> Emission:
    return Emission(job, list(tokens), [-token / 4 for token in tokens], version, kv_version, finish)


def buffers(*, stream: bool = False, start: int = 0, stream_tokens: int = 4, flush_s: float = 1.0) -> SpanBuffers:
    made = SpanBuffers(stream_tokens, flush_s)
    made.open(JOB, session=9, start=start, stream=stream, now=100.0)
    return made


def figures(spans: list[OwnedSpan]) -> list[tuple[int, list[int], int, int, Finish | None]]:
    return [(each.span.start, unpack_i4(each.span.tokens), each.span.version, each.span.kv_version, each.span.finish) for each in spans]


def test_a_span_names_its_owner_its_place_and_when_it_closed() -> None:
    made = buffers(start=5)
    assert made.absorb([emit(1, 2)], 100.0) == []
    (owned,) = made.absorb([emit(3, finish="stop")], 100.25)
    assert owned.partition == 3
    assert owned.span == Span(
        session=9, request=20, epoch=7, start=5, tokens=owned.span.tokens, logprobs=owned.span.logprobs, version=1, kv_version=1,
        finish="stop", engine_ms=250.0,
    )
    assert (unpack_i4(owned.span.tokens), unpack_f4(owned.span.logprobs)) == ([1, 2, 3], [-0.25, -0.5, -0.75])
    assert len(made) == 0


def test_a_span_ends_where_the_version_or_that_of_its_cache_changes() -> None:
    """R9: a new version over the old cache, then over one of its own."""
    emissions = [emit(1), emit(2, version=2), emit(3, version=2, kv_version=2), emit(4, version=2, kv_version=2, finish="length")]
    assert figures(buffers().absorb(emissions, 100.0)) == [(0, [1], 1, 1, None), (1, [2], 2, 1, None), (2, [3, 4], 2, 2, "length")]


def test_who_streams_gets_a_span_of_every_few_tokens_and_others_when_the_first_one_is_old() -> None:
    streamed = buffers(stream=True)
    assert figures(streamed.absorb([emit(1, 2, 3), emit(4), emit(5)], 100.0)) == [(0, [1, 2, 3, 4], 1, 1, None)]
    whole = buffers()
    assert whole.absorb([emit(1, 2, 3), emit(4)], 100.0) == []
    whole.absorb([emit(5)], 100.75)
    assert whole.due(100.75) == []
    assert figures(whole.due(101.0)) == [(0, [1, 2, 3, 4, 5], 1, 1, None)]
    assert whole.due(200.0) == []


def test_how_long_nothing_is_due() -> None:
    made = buffers(flush_s=1.0)
    assert made.until_due_s(100.0) == 1.0
    made.open(OTHER, session=9, start=0, stream=False, now=100.0)
    made.absorb([emit(1)], 100.25)
    made.absorb([emit(2, job=OTHER)], 100.5)
    assert made.until_due_s(101.0) == 0.25
    assert made.due(101.0) == []
    assert [each.partition for each in made.due(101.25)] == [JOB.partition]
    assert made.until_due_s(101.25) == 0.25
    assert made.until_due_s(103.0) == 0.0


def test_a_partition_that_is_given_up_gives_what_it_sampled_and_a_job_that_ended_nothing() -> None:
    made = buffers()
    made.open(OTHER, session=9, start=0, stream=False, now=100.0)
    made.absorb([emit(1), emit(2, job=OTHER)], 100.0)
    assert figures(made.release(3)) == [(0, [1], 1, 1, None)]
    made.drop(OTHER)
    assert (made.absorb([emit(3), emit(4, job=OTHER)], 100.0), made.flush(), len(made)) == ([], [], 0)


STEPS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.floats(0, 1)), min_size=1, max_size=30)
"""Tokens, whether a version came (2), and seconds since the last ones."""


@given(STEPS, st.booleans(), st.integers(1, 4))
def test_the_spans_of_a_job_hold_its_tokens_each_once_and_mix_no_versions(
    steps: list[tuple[int, int, float]], stream: bool, stream_tokens: int
) -> None:
    made, now, sampled, spans = buffers(stream=stream, stream_tokens=stream_tokens), 100.0, list[tuple[int, int]](), list[OwnedSpan]()
    version = 0
    for number, (count, news, waited_s) in enumerate(steps):
        version, now = version + (news == 2), now + waited_s
        tokens = [len(sampled) + index for index in range(count)]
        sampled += [(token, version) for token in tokens]
        ends = number == len(steps) - 1
        if tokens or ends:
            spans += made.absorb([emit(*tokens, version=version, kv_version=version, finish="stop" if ends else None)], now)
        spans += made.due(now)
    found = [(token, each.span.version) for each in spans for token in unpack_i4(each.span.tokens)]
    assert found == sampled
    assert [each.span.start for each in spans] == [sum(before.span.count for before in spans[:index]) for index in range(len(spans))]
    assert [each.span.finish for each in spans] == [None] * (len(spans) - 1) + ["stop"]
