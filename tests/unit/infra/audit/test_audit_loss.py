"""Where sampled tokens went, counted by hand on the hand-written log."""

from __future__ import annotations

import io
from pathlib import Path

from raw_log import EPOCH_A, EPOCH_B, RawLog, complete_log, mark, place, span
from rich.console import Console

from infra.audit.loss import Dropped, Lengths, Loss
from infra.audit.loss_command import as_json, show
from infra.audit.verify import Audit


def loss(log: RawLog) -> Loss:
    return Audit(log.list_log()).loss()


def balance(found: Loss) -> int:
    return found.trained + found.evaluated + found.pending + sum(found.wasted.values())


def test_the_story_by_hand(tmp_path: Path) -> None:
    found = loss(complete_log(tmp_path))
    assert found.sampled == balance(found) == 15
    assert (found.trained, found.evaluated, found.pending) == (4 + 4 + 3, 1, 0)
    assert found.wasted == {"cancelled": 2, "regenerated after a takeover": 1}
    assert found.dropped == {"empty": Dropped(1, 0)}
    assert found.offered == Lengths(3, 4.333, {"p10": 3, "p50": 4, "p90": 6, "p99": 6, "p100": 6})
    assert (found.trained_sessions, found.length_ratio, found.expired) == (found.offered, 1.0, 0)


def test_dropped_and_masked_tokens_have_a_reason_and_length_a_bias(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.at("training", 0, 10)["plan"]["rows"][1] |= {"train_from": [5], "train_to": [7]}  # two of four tokens of session 20
    for offset in (30, 31):
        del log.records["training", 0, offset]
    dropped = {"place": place(1, 0, 10), "reason": "too old", "group": 3}
    log.put("training", 0, 30, "Drops", drops=[dropped], consumed={"watermarks": [mark(1, 1, 50, 1)]})
    found = loss(log)
    assert found.sampled == balance(found) == 15
    assert found.trained == 4 + 2
    assert found.wasted == {
        "cancelled": 2, "dropped: too old": 3, "masked in a trained session": 2, "regenerated after a takeover": 1,
    }  # fmt: skip
    assert found.dropped == {"empty": Dropped(1, 0), "too old": Dropped(1, 3)}
    assert found.trained_sessions == Lengths(2, 5.0, {"p10": 4, "p50": 4, "p90": 6, "p99": 6, "p100": 6})
    assert found.length_ratio == round(5 / 4.333, 4)


def test_what_has_no_end_is_pending_and_what_came_after_the_end_is_wasted(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.session(145, "Span", **span(10, 120, EPOCH_B, 2, [32, 33]))  # the owner had not read the Cancel yet
    log.session(155, "Span", **span(10, 120, EPOCH_A, 2, [34]))  # and an old one even after the Close
    log.session(260, "Open", nonce=b"o1", check="ffffff")
    log.session(270, "Request", session=260, nonce=b"o2", tokens=b"", sampling={"max_tokens": 9})
    log.session(280, "Span", **span(260, 270, EPOCH_B, 0, [60, 61, 62]))
    found = loss(log)
    assert found.sampled == balance(found) == 15 + 3 + 3
    assert found.pending == 3
    assert found.wasted["written after the end"] == 3


def test_a_repeated_span_was_not_sampled_twice(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.session(95, "Span", **span(10, 30, EPOCH_B, 2, [12]))
    log.session(105, "Span", **span(10, 30, EPOCH_B, 3, [13], finish="stop"))
    assert loss(log).sampled == 15


def test_shares_of_the_shortest_and_the_longest(tmp_path: Path) -> None:
    """Eight sessions of 1 … 8 tokens; the trainer takes the four shortest and the sixth."""
    log = RawLog()
    log.put_fields(("grants", 0, 0), {"type": "Grant", "partition": 0, "node": "a", "incarnation": "x"})
    log.session(0, "Claim", epoch=0, node="a", incarnation="x")
    places, rows, drops = [], [], []
    for size in range(1, 9):
        at = 100 * size
        log.session(at, "Open", nonce=b"o%d" % size, check="aaaaaa")
        log.session(at + 10, "Request", session=at, nonce=b"r%d" % size, tokens=b"", sampling={"max_tokens": 9})
        log.session(at + 20, "Span", **span(at, at + 10, 0, 0, list(range(size)), finish="length"))
        log.session(at + 30, "Close", session=at)
        if size in (1, 2, 3, 4, 6):
            rows.append({"place": len(places), "nodes": [0], "stops": [size], "train_from": [0], "train_to": [size], "advantage": 1.0})
            places.append(place(0, size, at))
        else:
            drops.append({"place": place(0, size, at), "reason": "no signal"})
    plan = {"places": places, "rows": rows, "micro_batches": [], "mini_batches": []}
    log.put("training", 0, 10, "Step", step=1, version=0, plan=plan, drops=drops, consumed={}, weights_sha256="w")
    found = loss(log)
    assert (found.trained, found.wasted) == (1 + 2 + 3 + 4 + 6, {"dropped: no signal": 5 + 7 + 8})
    assert found.shares == [1.0, 1.0, 0.5, 0.0]
    assert found.length_ratio == round(3.2 / 4.5, 4)


def test_sessions_whose_records_have_expired_are_said_to_be_gone(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    log.firsts["sessions", 0] = 175
    log.commits["rollout"][0] = (180, "epoch=30;")
    found = loss(log)
    assert found.expired == 2
    assert found.trained == 3


def test_what_an_operator_sees(tmp_path: Path) -> None:
    found = loss(complete_log(tmp_path))
    screen = Console(file=io.StringIO(), width=200)
    show(found, screen)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "wasted: cancelled" in text
    assert "tokens per session, offered: 3 sessions, mean 4.333, p10 3, p50 4" in text
    assert "trained sessions are 1.00 times as long as those offered" in text
    assert as_json(found)["dropped"] == {"empty": {"sessions": 1, "tokens": 0}}
    assert as_json(found)["offered"]["quantiles"]["p90"] == 6
