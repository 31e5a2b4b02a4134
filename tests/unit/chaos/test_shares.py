"""Shares of the crash matrix: rows that share a cluster stand together, and no row is without a result."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import shares
from tests.chaos.report import Result
from tests.chaos.row import Happened, Row, all_rows
from tests.chaos.shares import Share, play_shares, shares_of
from tests.chaos.stage import Stage


async def play(stage: Stage) -> Happened:
    raise AssertionError("no test gets here")


def test_rows_without_a_shared_pipeline_are_a_share_of_their_own_and_the_longest_comes_first() -> None:
    rows = [
        Row("1", "one node", play), Row("2", "one node", play, "loop"), Row("3", "one node", play, is_alone=True),
        Row("4", "one node", play, "bare"), Row("5", "one node", play), Row("6", "three nodes", play, "loop"),
    ]  # fmt: skip
    assert [(share.name, [row.fault for row in share.rows]) for share in shares_of(rows)] == [
        ("one-node-alone", ["3", "4"]), ("one-node-calls", ["1", "5"]), ("one-node-loop", ["2"]), ("three-nodes-loop", ["6"])
    ]  # fmt: skip


def test_every_row_is_in_one_share() -> None:
    rows = all_rows()
    assert sorted(row.fault for share in shares_of(rows) for row in share.rows) == sorted(row.fault for row in rows)


def test_rows_of_a_tier_that_does_not_exist_play_to_no_result_and_are_failed(tmp_path: Path) -> None:
    """Their process ends at once, without a word about them."""
    wanted = [Share("first", (Row("1", "no tier", play), Row("2", "no tier", play))), Share("second", (Row("3", "no tier", play),))]
    results = list(play_shares(wanted, tmp_path, seed=0, at_once=1))
    assert [(each.fault, each.status, each.reason) for each in results] == [
        (fault, "failed", "the process of its share ended with code 0") for fault in "123"
    ]


def test_a_result_is_passed_on_and_the_row_after_it_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = shares._start

    def start(share: Share, folder: Path, seed: int) -> Any:
        """A process that says one result of two."""
        playing = started(share, folder, seed)
        playing.process.join()
        playing.results, said = _pipe()
        said.send(Result("1", "no tier", "passed"))
        said.close()
        return playing

    monkeypatch.setattr(shares, "_start", start)
    share = Share("only", (Row("1", "no tier", play), Row("2", "no tier", play)))
    assert [(each.fault, each.status) for each in play_shares([share], tmp_path, seed=0, at_once=2)] == [("1", "passed"), ("2", "failed")]


def _pipe() -> tuple[Connection, Connection]:
    from multiprocessing import Pipe

    receiver, sender = Pipe(duplex=False)
    return receiver, sender
