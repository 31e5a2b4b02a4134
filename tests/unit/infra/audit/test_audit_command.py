"""What an operator sees: the table, the places, the exit codes."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from raw_log import complete_log
from rich.console import Console

from infra.audit.command import SHOWN_VIOLATIONS, show, verify
from infra.cli.where import Where
from schemas.errors import BrokerUnavailable


def shown(log_folder: Path, spoil: bool) -> str:
    log = complete_log(log_folder)
    if spoil:
        log.at("training", 0, 30)["staleness"] = 0
    screen = Console(file=io.StringIO(), width=200)
    show(log.audit(), screen)
    text: str = screen.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_correct_log_is_said_to_be_correct(tmp_path: Path) -> None:
    text = shown(tmp_path, spoil=False)
    assert "the log is what a correct system writes" in text
    assert "5 sessions, 5 ended; 5 requests, 0 without an end; 14 tokens" in text


def test_a_violation_is_shown_with_its_place(tmp_path: Path) -> None:
    text = shown(tmp_path, spoil=True)
    assert "R6 at training 0 30: staleness is 0, recomputed 1" in text
    assert "1 violations" in text


def test_a_long_list_is_cut_and_says_so(tmp_path: Path) -> None:
    log = complete_log(tmp_path)
    for number in range(SHOWN_VIOLATIONS + 7):
        log.put("scores", 1, 100 + number, "Score", trajectory=99, session=1, rule="letters", value=0.0)
    screen = Console(file=io.StringIO(), width=200)
    show(log.audit(), screen)
    assert "… and 7 more: see --json" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_log_that_cannot_be_read_is_the_brokers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.audit.log.KafkaLog.__init__.__kwdefaults__", {"timeout_s": 0.5})
    with pytest.raises(BrokerUnavailable):
        verify(where=Where(bootstrap="127.0.0.1:1"))


def test_the_audit_shares_no_fold_and_no_codec_with_what_it_judges() -> None:
    banned = "workers", "trainer", "torch", "aiokafka", "streams.codec"
    program = f"import sys, infra.audit.command; print([name for name in {banned!r} if name in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"
