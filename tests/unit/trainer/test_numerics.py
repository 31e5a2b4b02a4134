"""The numerics key."""

from __future__ import annotations

import pytest
import torch

from trainer.numerics import numerics_key, settle

pytestmark = pytest.mark.torch


def test_the_key_is_text_and_says_what_decides_the_last_bits() -> None:
    settle()
    key = numerics_key()
    assert all(type(value) is str and value for value in key.values())
    assert (key["torch"], key["threads"], key["dtype"]) == (torch.__version__, "1", "float32")
    assert key == numerics_key()


def test_another_kernel_choice_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = numerics_key()
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert numerics_key() != before
    assert numerics_key(dtype=torch.bfloat16)["dtype"] == "bfloat16"
