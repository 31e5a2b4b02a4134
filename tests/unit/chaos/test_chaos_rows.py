"""The table of rows: every failpoint of the software is hit by a row, and every row runs on a tier that exists."""

from __future__ import annotations

from streams.failpoint import FAILPOINTS
from tests.chaos.row import all_rows
from tests.chaos.tiers import TIERS

ROWS = [row for row in all_rows() if row.tier in TIERS]


def test_every_failpoint_is_hit_by_a_row() -> None:
    assert {row.failpoint for row in ROWS if row.failpoint} == FAILPOINTS


def test_there_are_at_least_thirty_rows() -> None:
    assert len(ROWS) >= 30


def test_a_row_that_arms_a_member_names_where_it_dies() -> None:
    assert [row.fault for row in ROWS if bool(row.arms) != bool(row.failpoint)] == []
