"""Signals that end a command: the first one interrupts, later ones wait for the clean-up."""

from __future__ import annotations

import os
import signal

import pytest

from infra.crew.interrupt import signals_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts_and_the_clean_up_is_left_alone(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cleaned: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        _be_interrupted(number, cleaned)
    assert cleaned == [True]
    assert signal.getsignal(number) is before


def _be_interrupted(number: signal.Signals, cleaned: list[bool]) -> None:
    with signals_interrupt():
        try:
            os.kill(os.getpid(), number)
            signal.pause()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            cleaned.append(True)
