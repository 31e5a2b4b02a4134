"""The low watermark by hand, and its invariant on every order of endings."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.watermark import LowWatermark


def test_it_passes_only_what_is_done() -> None:
    mark = LowWatermark()
    assert mark.next_offset is None
    for offset in (5, 6, 9):  # offsets have gaps
        mark.take(offset)
    assert mark.next_offset == 5
    mark.done(6)
    assert mark.next_offset == 5
    mark.done(5)
    assert mark.next_offset == 7
    mark.done(9)
    assert (mark.next_offset, len(mark)) == (10, 0)


@given(st.permutations(range(8)))
def test_in_every_order_the_lowest_open_record_holds_it(order: list[int]) -> None:
    mark = LowWatermark()
    for offset in range(8):
        mark.take(offset)
    left = set(range(8))
    for offset in order:
        mark.done(offset)
        left.discard(offset)
        assert mark.next_offset == min(left, default=8)
