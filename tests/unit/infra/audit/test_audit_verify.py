"""The correct log passes; its figures are those of the story, counted by hand."""

from __future__ import annotations

from pathlib import Path

from raw_log import complete_log

from infra.audit.findings import RULES


def test_a_correct_log_has_no_violation_and_every_rule_was_checked(tmp_path: Path) -> None:
    verdict = complete_log(tmp_path).audit(staleness_bound=1)
    assert verdict.violations == []
    assert verdict.audit_ok
    assert all(verdict.checked[rule] > 0 for rule in RULES)


def test_sums_of_the_story(tmp_path: Path) -> None:
    verdict = complete_log(tmp_path).audit()
    assert (verdict.figures.sessions, verdict.figures.ended, verdict.figures.requests, verdict.figures.lost_requests) == (5, 5, 5, 0)
    assert verdict.figures.tokens == 4 + 4 + 2 + 1 + 3
    assert (verdict.trajectories, verdict.undecided, verdict.steps, verdict.versions) == (5, 0, 2, 3)
    assert (verdict.trained_tokens, verdict.trained_twice, verdict.staleness_max) == (11, 0, 1)
    assert verdict.dropped == {"empty": 1}
    assert verdict.figures.ignored == {"claim not above the epoch in force": 1, "span of another epoch": 1}


def test_the_takeover_is_told_from_bytes(tmp_path: Path) -> None:
    figures = complete_log(tmp_path).audit(kills_ms=(1_000_650,)).figures
    (takeover,) = figures.takeovers
    assert (takeover.partition, takeover.offset, takeover.epoch, takeover.cause) == (0, 70, 30, "dead")
    assert (takeover.unfinished, takeover.resumed, takeover.resumed_in_mid_generation) == (2, 2, 2)
    assert figures.resumed_requests == 2
    assert figures.resumed_at_accepted_length is True
    assert takeover.seconds == (1_000_900 - 1_000_650) / 1000
    assert (takeover.own_s, takeover.first_token_s) == (0.05, 0.2), "the Claim stands at 1,000,700"


def test_without_a_kill_a_takeover_counts_from_the_last_counted_span(tmp_path: Path) -> None:
    verdict = complete_log(tmp_path).audit()
    assert verdict.figures.takeovers[0].seconds == (1_000_900 - 1_000_600) / 1000
    assert verdict.as_json()["takeover_s"] == 0.3


def test_a_request_without_an_end_is_lost(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.session(270, "Request", session=260, nonce=b"o2", tokens=b"", sampling={"max_tokens": 1})
    verdict = log.audit()
    assert verdict.figures.lost_requests == 1
    assert verdict.audit_ok


def test_a_session_that_just_ended_may_wait_for_its_trajectory(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.session(270, "Close", session=260)
    assert log.audit(grace_ms=1).audit_ok
    assert not log.audit(grace_ms=0).audit_ok


def test_a_gap_in_the_tasks_is_judged_once_its_commit_must_be_visible_and_a_double_at_once(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.at("tasks", 3, 40)["number"] = 5
    assert log.audit(grace_ms=60_000).audit_ok
    assert not log.audit(grace_ms=0).audit_ok
    log.at("tasks", 3, 40)["number"] = 3
    assert not log.audit(grace_ms=60_000).audit_ok


def test_after_retention_the_reading_begins_at_the_owners_position(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.firsts["sessions", 0] = 100
    log.commits["rollout"][0] = (180, "epoch=30;")
    verdict = log.audit()
    assert verdict.violations == []
    assert verdict.figures.sessions == 2 + 1  # those of offsets 180 and 220, and the one of partition 1


def test_after_retention_without_a_position_nothing_counts_before_a_reset(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.firsts["sessions", 0] = 100
    log.commits["rollout"][0] = (20, "epoch=0;")
    log.commits["assembler"].pop(0)
    assert log.audit().figures.sessions == 1
    log.put("grants", 0, 40, "Grant", node="c", incarnation="z")["partition"] = 0
    log.session(170, "Claim", epoch=40, node="c", incarnation="z", reset=True)
    log.session(175, "Open", nonce=b"o1", check="ffffff")
    assert set(log.audit().figures.ignored) >= {"before a reset"}
    assert log.audit().figures.sessions == 4


def test_dead_letters_are_counted_by_topic_and_reason(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    letter = {"topic": "scores", "partition": 0, "offset": 7, "reason": "not msgpack", "reader": "trainer"}
    for offset in (0, 1):
        log.put_fields(("deadletter", 0, offset), {"type": "DeadLetter", **letter})
    assert log.audit().dead_letters == {"scores: not msgpack": 2}


def test_files_that_the_log_lets_go_may_be_gone(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.at("training", 0, 31)["files_from"] = 2
    [file] = log.at("training", 0, 11)["files"]
    Path(file["uri"].removeprefix("file://")).unlink()
    verdict = log.audit()
    assert (verdict.violations, verdict.versions, verdict.versions_removed) == ([], 3, 1)
