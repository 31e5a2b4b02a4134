"""The crash matrix judges its rows: by proof of the fault, by what was lost or twice, and by what the audit finds anew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from infra.audit.findings import Violation
from infra.broker.cluster import LocalKafka
from tests.chaos import frame
from tests.chaos.check import Counts
from tests.chaos.frame import ROWS_A_PIPELINE, House, in_order, judged
from tests.chaos.report import Result, report, summary
from tests.chaos.row import Happened, Row, row
from tests.chaos.stage import Stage
from tests.chaos.tiers import TIERS

NOTHING = Counts()
DONE = frozenset({(0, 1), (0, 2), (1, 1)})
SOUND = Counts(done=DONE)
R2, R4 = (Violation(rule, "sessions", 0, 7, "text") for rule in ("R2", "R4"))  # type: ignore[arg-type]


async def play(stage: Stage) -> Happened:
    return Happened("")


A_ROW = Row("a fault", "one node", play)


def test_a_row_whose_fault_happened_and_that_left_a_sound_log_passes() -> None:
    result = judged(A_ROW, Happened("it died"), Counts(done=DONE, stall_s=1.5, takeover_s=4.0), NOTHING)
    assert (result.status, result.fired, result.stall_s, result.sessions, result.takeover_s) == ("passed", "it died", 1.5, 3, 4.0)


def test_a_row_whose_fault_did_not_happen_fails() -> None:
    result = judged(A_ROW, Happened(""), SOUND, NOTHING)
    assert (result.status, result.reason) == ("failed", "its fault never happened (longest silence None s)")


def test_a_fault_that_was_to_cause_silence_and_did_not_never_happened() -> None:
    happened = Happened("the broker was frozen", least_stall_s=5.0)
    assert judged(A_ROW, happened, replace(SOUND, stall_s=4.9), NOTHING).status == "failed"
    assert judged(A_ROW, happened, replace(SOUND, stall_s=5.0), NOTHING).status == "passed"


@pytest.mark.parametrize(
    ("found", "lost", "twice"),
    [(Counts(lost=frozenset({"a", "b"})), 2, 0), (Counts(twice=frozenset({"c"})), 0, 1), (Counts(violations=frozenset({R2})), 0, 0)],
)
def test_what_the_log_lost_doubled_or_broke_fails_a_row(found: Counts, lost: int, twice: int) -> None:
    result = judged(A_ROW, Happened("it died"), replace(found, done=DONE), NOTHING)
    assert (result.status, result.lost, result.twice) == ("failed", lost, twice)
    assert result.reason


def test_what_an_earlier_row_left_is_not_counted_again() -> None:
    left = Counts(done=frozenset({(0, 1)}), lost=frozenset({"a"}), twice=frozenset({"b"}), violations=frozenset({R2}))
    result = judged(A_ROW, Happened("it died"), replace(left, done=DONE), left)
    assert (result.status, result.sessions) == ("passed", 2)


def test_a_row_may_break_the_rules_that_it_names_and_no_others() -> None:
    happened = Happened("a corrupt record stands in the log", allowed=("R4",))
    assert judged(A_ROW, happened, replace(SOUND, violations=frozenset({R4})), NOTHING).status == "passed"
    assert judged(A_ROW, happened, replace(SOUND, violations=frozenset({R4, R2})), NOTHING).status == "failed"


def test_what_a_row_counts_itself_fails_it() -> None:
    result = judged(A_ROW, Happened("cut", lost=1, twice=2, stall_s=3.0), None, NOTHING)
    assert (result.status, result.lost, result.twice, result.stall_s) == ("failed", 1, 2, 3.0)


def test_a_row_that_counted_nothing_fails() -> None:
    assert judged(A_ROW, Happened("it died"), NOTHING, NOTHING).reason == "no session came to its end: nothing was checked"
    assert judged(A_ROW, Happened("it died", lost=0), None, NOTHING).reason == "the row counted nothing"
    assert judged(A_ROW, Happened("it died", lost=0, twice=0), None, NOTHING).status == "passed"


def test_rows_that_share_a_pipeline_stand_together_and_those_alone_come_last() -> None:
    rows = [
        Row("1", "one node", play, "calls"), Row("2", "one node", play, "loop"), Row("3", "one node", play, "calls", is_alone=True),
        Row("4", "one node", play, "calls"),
    ]  # fmt: skip
    assert [each.fault for each in in_order(rows)] == ["1", "4", "2", "3"]


def test_a_pipeline_is_replaced_after_some_rows_and_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []

    @contextmanager
    def open_one(*given: object, **changes: object) -> Iterator[int]:
        opened.append(len(opened) + 1)
        yield opened[-1]

    async def run(house: House, row: Row, pipeline: int) -> Result:
        return Result(row.fault, row.tier, "failed" if row.fault == "bad" else "passed", fired=str(pipeline))

    monkeypatch.setattr(frame, "standing_pipeline", open_one)
    monkeypatch.setattr(House, "_run", run)
    house = House(LocalKafka(tmp_path), tmp_path, print, seed=0)
    monkeypatch.setattr(LocalKafka, "bootstrap", "")
    on = [house.play(Row(fault, "one node", play)).fired for fault in ("good", "bad", *["good"] * (ROWS_A_PIPELINE + 1))]
    assert on == ["1", "1", *["2"] * ROWS_A_PIPELINE, "3"]


def test_two_rows_have_two_names() -> None:
    row("named once, in a test", tier="no such tier")(play)
    with pytest.raises(ValueError, match="two rows are named"):
        row("named once, in a test", tier="no such tier")(play)
    assert "no such tier" not in TIERS


def test_the_report_holds_what_is_asked_of_it() -> None:
    results = [
        Result("kill", "one node", "passed", fired="it died", stall_s=2.0, takeover_s=4.5, killed=("rollout-1", "rollout-0")),
        Result("cut", "three nodes", "failed", "1 lost", lost=1, twice=2, takeover_s=3.0),
        Result("kill two", "one node", "passed", fired="both died", takeover_s=9.0, killed=("rollout-1", "scheduler")),
        Result("disk full", "one node", "skipped", "mount is not permitted"),
    ]
    said = report(results, seed=3)
    assert (said["lost"], said["twice"], said["seed"], said["takeover_s"], said["trainer_back_s"]) == (1, 2, 3, 4.5, None)
    wanted = {"fault", "tier", "status", "reason", "fired", "stall_s", "lost", "twice"}
    assert all(wanted <= set(found) for found in said["rows"])
    assert [found["status"] for found in said["rows"]] == ["passed", "failed", "passed", "skipped"]
    text = summary(results, took_s=61.0)
    assert "2 rows passed, 1 failed, 1 skipped; 1 lost, 2 twice" in text
    assert "skipped: disk full (one node): mount is not permitted" in text


def test_a_time_beyond_its_limit_is_marked_where_one_process_died_alone() -> None:
    results = [
        Result("kill an owner", "one node", "passed", takeover_s=6.1, killed=("rollout-1",), parts_s={"play": 5.0, "check": 1.0}),
        Result("kill the trainer", "one node", "passed", trainer_back_s=3.0, killed=("trainer",), parts_s={"play": 7.0}),
        Result("kill the broker", "one node", "passed", takeover_s=20.0, trainer_back_s=30.0),
    ]
    text = summary(results, took_s=14.0)
    assert "takeover_s: at most [red]6.1[/], the limit is 6 s" in text
    assert "trainer_back_s: at most [green]3.0[/], the limit is 15 s" in text
    assert "took 14 s; in all rows: play 12 s, check 1 s" in text
    assert report(results, seed=0)["limits"] == {"takeover_s": 6.0, "trainer_back_s": 15.0}
    assert "trainer_back_s: no trainer died alone" in summary(results[:1], took_s=1.0)
