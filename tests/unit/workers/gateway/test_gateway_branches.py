from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.arrays import pack_f4, pack_i4
from schemas.session import Claim, Open, Request, Sampling
from schemas.span import Span
from workers.gateway.branches import Branches
from workers.ledger import Ledger, SessionState

TOKENS = st.lists(st.integers(0, 2), max_size=6)


class Folded:
    """A session grown record by record; the claim stands at offset 0, the Open at 1."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.apply(0, Claim(epoch=1, node="n", incarnation="i"))
        self.ledger.apply(1, Open(nonce=b"o", check="abcdef"))

    @property
    def session(self) -> SessionState:
        return self.ledger.sessions[1]

    def request(self, tokens: Sequence[int], base: int | None = None, base_length: int = 0) -> int:
        offset = self.ledger.next
        record = Request(
            session=1, nonce=b"%d" % offset, tokens=pack_i4(tokens), sampling=Sampling(max_tokens=9), base=base, base_length=base_length
        )
        assert self.ledger.apply(offset, record) is not None
        return offset

    def span(self, request: int, tokens: Sequence[int], *, ends: bool) -> None:
        start = self.session.requests[request].accepted
        finish = "length" if ends or not tokens else None
        span = Span(
            session=1, request=request, epoch=1, start=start, tokens=pack_i4(tokens), logprobs=pack_f4([-1.0] * len(tokens)), version=0,
            kv_version=0, finish=finish,
        )
        self.ledger.apply(self.ledger.next, span)


def test_a_second_turn_builds_on_the_whole_first_one() -> None:
    folded, branches = Folded(), Branches()
    first = folded.request([1, 2, 3])
    folded.span(first, [4, 5], ends=True)
    branches.take(folded.session)
    point, followed = branches.walk(branches.root, pack_i4([1, 2, 3, 4, 5, 6]))
    assert followed == 5 * 4
    base, count = branches.base_at(point)
    assert (base is folded.session.requests[first], count) == (True, 5)


def test_the_base_is_the_request_that_added_the_last_shared_token() -> None:
    folded, branches = Folded(), Branches()
    first = folded.request([1, 2])
    folded.span(first, [3], ends=True)
    second = folded.request([4], base=first, base_length=3)
    folded.span(second, [5], ends=True)
    branches.take(folded.session)
    for prompt, expected in [([1, 2, 9], (first, 2)), ([1, 2, 3], (first, 3)), ([1, 2, 3, 4, 8], (second, 4)), ([9], (None, 0))]:
        base, count = branches.base_at(branches.walk(branches.root, pack_i4(prompt))[0])
        assert (base.offset if base else None, count) == expected, prompt


def test_a_running_request_is_shared_as_far_as_it_has_come() -> None:
    folded, branches = Folded(), Branches()
    first = folded.request([1])
    prompt = pack_i4([1, 2, 3])
    for sampled, shared in [([], 1), ([2], 2), ([3], 3)]:
        if sampled:
            folded.span(first, sampled, ends=False)
        branches.take(folded.session)
        assert branches.base_at(branches.walk(branches.root, prompt)[0]) == (folded.session.requests[first], shared)


def test_requests_with_one_prompt_are_found_by_it() -> None:
    folded, branches = Folded(), Branches()
    offsets = [folded.request([1, 2]), folded.request([1, 2]), folded.request([1, 3])]
    folded.span(offsets[0], [7], ends=True)
    branches.take(folded.session)
    point, _ = branches.walk(branches.root, pack_i4([1, 2]))
    assert [request.offset for request in branches.prompted_at(point)] == offsets[:2]


def test_a_prompt_is_found_after_a_later_branch_split_its_run() -> None:
    folded, branches = Folded(), Branches()
    first = folded.request([1, 2])
    folded.span(first, [3, 4], ends=True)
    branches.take(folded.session)
    folded.request([1, 2, 9])
    branches.take(folded.session)
    request = folded.session.requests[first]
    point, _ = branches.walk(branches.root, pack_i4([1, 2]))
    assert branches.prompted_at(point) == [request]
    assert branches.base_at(branches.before_prompt_end(request, 1)) == (request, 1)


def test_a_request_upon_a_wrong_base_is_left_out() -> None:
    folded, branches = Folded(), Branches()
    folded.request([5], base=99, base_length=1)
    branches.take(folded.session)
    assert branches.walk(branches.root, pack_i4([5]))[1] == 0


@settings(deadline=None)
@given(st.data())
def test_the_longest_common_prefix_is_found_whatever_the_tree(data: st.DataObject) -> None:
    """Against a comparison with every request's whole sequence, after every record."""
    folded, branches = Folded(), Branches()
    named = []
    for _ in range(data.draw(st.integers(1, 12))):
        requests = list(folded.session.requests.values())
        running = [request for request in requests if request.end is None]
        if running and data.draw(st.booleans()):
            folded.span(data.draw(st.sampled_from(running)).offset, data.draw(TOKENS), ends=data.draw(st.booleans()))
        elif requests and data.draw(st.booleans()):
            base = data.draw(st.sampled_from(requests))
            folded.request(data.draw(TOKENS), base.offset, data.draw(st.integers(0, base.length)))
        else:
            folded.request(data.draw(TOKENS))
        branches.take(folded.session)
        prompt = pack_i4(data.draw(st.lists(st.integers(0, 2), max_size=20)))
        _check(folded.session, branches, prompt)
        named += [(branches.end_of(request), request.sequence()) for request in folded.session.requests.values()]
    for point, sequence in named:
        base, count = branches.base_at(point)
        assert (b"" if base is None else base.sequence(count)) == sequence, "a point means the same tokens for ever"


def _check(session: SessionState, branches: Branches, prompt: bytes) -> None:
    point, followed = branches.walk(branches.root, prompt)
    base, count = branches.base_at(point)
    assert followed == count * 4 == max(_common(prompt, request.sequence()) for request in session.requests.values())
    if base is not None:
        assert base.sequence(count) == prompt[:followed]
        assert count > base.record.base_length or base.base is None
    same = [request.offset for request in session.requests.values() if request.sequence(request.prompt_length) == prompt]
    if followed == len(prompt):
        assert [request.offset for request in branches.prompted_at(point)] == same
    else:
        assert not same


def _common(one: bytes, other: bytes) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count : count + 4] == other[count : count + 4]:
        count += 4
    return count
