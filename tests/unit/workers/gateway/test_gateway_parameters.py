from __future__ import annotations

from typing import Any

import orjson
import pytest

from workers.gateway.parameters import Message, Parameters, parse_parameters
from workers.gateway.problems import Problem

MESSAGES = [{"role": "user", "content": "a"}]


def parsed(**more: Any) -> Parameters:
    return parse_parameters(orjson.dumps({"model": "policy", "messages": MESSAGES, **more}))


def refused(**more: Any) -> Problem:
    with pytest.raises(Problem) as caught:
        parsed(**more)
    return caught.value


def test_what_is_not_said_has_openais_defaults() -> None:
    expected = Parameters(
        messages=[Message("user", "a")], max_tokens=None, temperature=1.0, seed=None, logprobs=False, stream=False, include_usage=False
    )
    assert parsed() == expected


def test_what_is_said_is_taken() -> None:
    found = parsed(max_tokens=5, temperature=0, seed=-3, logprobs=True, top_logprobs=0, stream=True, stream_options={"include_usage": True})
    assert (found.max_tokens, found.temperature, found.seed) == (5, 0.0, -3)
    assert (found.logprobs, found.stream, found.include_usage) == (True, True, True)


def test_the_newer_name_of_the_budget_wins() -> None:
    assert parsed(max_tokens=5, max_completion_tokens=7).max_tokens == 7


def test_text_parts_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert parsed(messages=[{"role": "system", "content": parts}]).messages == [Message("system", "ab")]


@pytest.mark.parametrize(
    "neutral",
    [
        {"top_p": 1}, {"top_p": 1.0}, {"n": 1}, {"stop": None}, {"stop": []}, {"tools": []}, {"response_format": {"type": "text"}},
        {"frequency_penalty": 0}, {"presence_penalty": 0.0}, {"logit_bias": {}}, {"user": "me"}, {"metadata": {"a": "b"}}, {"seed": None},
    ],
)
def test_values_that_say_nothing_pass(neutral: dict[str, Any]) -> None:
    assert parsed(**neutral) == parsed()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.9), ("stop", "x"), ("stop", ["x"]), ("n", 2), ("n", True), ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("response_format", {"type": "json_object"}), ("frequency_penalty", 0.1), ("presence_penalty", -1), ("logit_bias", {"1": 2}),
        ("top_logprobs", 3), ("functions", [{}]), ("reasoning_effort", "low"), ("top_k", 5), ("min_p", 0.1), ("prediction", {}),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(name: str, value: object) -> None:
    problem = refused(**{name: value})
    assert (problem.status, problem.code, problem.param) == (400, "unsupported_parameter", name)
    assert name in problem.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("messages", None), ("messages", []), ("messages", "a"), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", True),
        ("temperature", -0.1), ("temperature", 2.1), ("temperature", "hot"), ("seed", 1 << 63), ("seed", 0.5), ("logprobs", 1),
        ("stream", "yes"), ("stream_options", []),
    ],
)
def test_what_is_wrong_is_named(name: str, value: object) -> None:
    problem = refused(**{name: value})
    assert (problem.status, problem.code, problem.param) == (400, "invalid_value", name)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("a", "messages[0]"),
        ({"content": "a"}, "messages[0]"),
        ({"role": "assistant", "content": None}, "messages[0].content"),
        ({"role": "assistant", "content": "", "tool_calls": [{}]}, "messages[0].tool_calls"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0]"),
    ],
)
def test_a_message_that_cannot_be_used_is_named(message: object, param: str) -> None:
    assert refused(messages=[message]).param == param


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"a"', b'{"messages": "\xff"}', b"\x00"])
def test_bytes_that_are_no_json_object_are_refused(body: bytes) -> None:
    with pytest.raises(Problem) as caught:
        parse_parameters(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_an_error_has_openais_shape() -> None:
    assert orjson.loads(Problem(429, "overloaded", "full").body()) == {
        "error": {"message": "full", "type": "rate_limit_error", "param": None, "code": "overloaded"}
    }
    assert Problem(429, "overloaded", "full").headers() == {"retry-after": "1"}
