"""R4 when records are made: parallel arrays have one length and no NaN, and what cannot be true is refused before it is written."""

from __future__ import annotations

from typing import Any

import pytest

from schemas.arrays import pack_f4, pack_i4
from schemas.session import Request, Sampling
from schemas.span import Span
from schemas.trajectory import Node

SAMPLING = Sampling(max_tokens=4)


def span(**changes: Any) -> Span:
    sound: dict[str, Any] = {
        "session": 1, "request": 2, "epoch": 3, "start": 0, "tokens": pack_i4([5, 6]), "logprobs": pack_f4([-0.5, -1.0]),
        "version": 4, "kv_version": 4,
    }  # fmt: skip
    return Span(**sound | changes)


def node(**changes: Any) -> Node:
    sound: dict[str, Any] = {
        "request": 2, "prompt": 1, "tokens": pack_i4([5, 6]), "mask": b"\0\1", "logprobs": pack_f4([0.0, -1.0]),
        "versions": pack_i4([-1, 4]), "sampling": SAMPLING, "end": "stop",
    }  # fmt: skip
    return Node(**sound | changes)


def request(**changes: Any) -> Request:
    return Request(**{"session": 1, "nonce": b"n", "tokens": pack_i4([5]), "sampling": SAMPLING} | changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"logprobs": pack_f4([-0.5])}, "tokens 2, logprobs 1"),
        ({"tokens": pack_i4([5, 6])[:7]}, "7 bytes"),
        ({"logprobs": pack_f4([-0.5, float("nan")])}, "logprobs holds a value that is not finite"),
        ({"logprobs": pack_f4([float("-inf"), -0.5])}, "logprobs holds a value that is not finite"),
        ({"tokens": b"", "logprobs": b""}, "must end its request"),
        ({"start": -1}, "start -1"),
        ({"version": -1, "kv_version": -1}, "version -1"),
        ({"kv_version": 5}, "kv_version 5"),
        ({"kv_version": -1}, "kv_version -1"),
    ],
    ids=["lengths", "torn", "NaN", "infinity", "says nothing", "start", "version", "younger cache", "no cache version"],
)
def test_r4_a_span_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        span(**changes)


def test_a_span_without_tokens_may_end_its_request_over_an_older_cache() -> None:
    assert span(tokens=b"", logprobs=b"", finish="failed", kv_version=0).count == 0


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens": pack_i4([5])}, "tokens 1, mask 2, logprobs 2, versions 2"),
        ({"mask": b"\1"}, "tokens 2, mask 1, logprobs 2, versions 2"),
        ({"logprobs": pack_f4([0.0] * 3)}, "tokens 2, mask 2, logprobs 3, versions 2"),
        ({"versions": pack_i4([])}, "tokens 2, mask 2, logprobs 2, versions 0"),
        ({"logprobs": pack_f4([0.0, float("nan")])}, "logprobs holds a value that is not finite"),
        ({"prompt": 3}, "prompt 3 of 2 tokens"),
        ({"prompt": -1}, "prompt -1 of 2 tokens"),
    ],
    ids=["tokens", "mask", "logprobs", "versions", "NaN", "long prompt", "negative prompt"],
)
def test_r4_a_node_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        node(**changes)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tokens": b"123"}, "3 bytes"),
        ({"base_length": 1}, "base_length 1 without a base"),
        ({"base": 7, "base_length": -1}, "base_length -1"),
    ],
    ids=["torn", "no base", "negative"],
)
def test_r4_a_request_that_cannot_be(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        request(**changes)


@pytest.mark.parametrize("changes", [{"max_tokens": 0}, {"temperature": -0.1}, {"temperature": 100.5}, {"temperature": float("nan")}])
def test_r11_sampling_that_no_trainer_can_reproduce(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        Sampling(**{"max_tokens": 1} | changes)


def test_what_is_sound_is_taken() -> None:
    assert (span().count, node().prompt, request(base=7, base_length=3).base_length) == (2, 1, 3)
