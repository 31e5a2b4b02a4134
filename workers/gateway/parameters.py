"""The body of a chat completion, checked. Pure.

Invariant: a parameter either has its meaning, or cannot change the result, or is refused by name; none is dropped in silence (R11: what
was sampled is what the agent asked for).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson

from workers.gateway.problems import Problem, invalid, unsupported

MAX_TEMPERATURE = 2.0

IGNORED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"})
"""They never change what is sampled."""

NEUTRAL: dict[str, tuple[object, ...]] = {
    "top_p": (1,),
    "n": (1,),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "stop": ([],),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "top_logprobs": (0,),
    "modalities": (["text"],),
}
"""Not supported yet, but for values that say nothing (as null does)."""

SUPPORTED = frozenset(
    {"messages", "model", "max_tokens", "max_completion_tokens", "temperature", "seed", "logprobs", "stream", "stream_options"}
)

N = TypeVar("N", int, float)


class Message(NamedTuple):
    """One message of the history, as text."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a call asks for. `max_tokens` None: as much as the gateway gives."""

    messages: list[Message]
    max_tokens: int | None
    temperature: float
    seed: int | None
    logprobs: bool
    stream: bool
    include_usage: bool


def parse_object(body: bytes) -> dict[str, Any]:
    """A JSON object.

    :raises Problem: 400, the bytes are not UTF-8, not JSON, or not an object.
    """
    try:
        content = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise invalid("the body is not a JSON object", code="invalid_json")
    return content


def parse_parameters(body: bytes) -> Parameters:
    """The parameters in the body of a call.

    :raises Problem: 400, naming the parameter that is wrong or not supported.
    """
    content = {name: value for name, value in parse_object(body).items() if value is not None}
    for name, value in content.items():
        _check_name(name, value)
    budget = "max_completion_tokens" if "max_completion_tokens" in content else "max_tokens"
    return Parameters(
        messages=_messages(content.get("messages")),
        max_tokens=_number(content, budget, int, 1, (1 << 31) - 1),
        temperature=1.0 if (given := _number(content, "temperature", float, 0.0, MAX_TEMPERATURE)) is None else given,
        seed=_number(content, "seed", int, -(1 << 63), (1 << 63) - 1),
        logprobs=_flag(content, "logprobs"),
        stream=_flag(content, "stream"),
        include_usage=_flag(_options(content), "include_usage"),
    )


def _check_name(name: str, value: object) -> None:
    if name in SUPPORTED or name in IGNORED:
        return
    if not any(value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in NEUTRAL.get(name, ())):
        raise unsupported(name)


def _messages(value: object) -> list[Message]:
    if not isinstance(value, list) or not value:
        raise invalid("messages must be a list with at least one message", "messages")
    return [_message(f"messages[{index}]", message) for index, message in enumerate(value)]


def _message(where: str, value: object) -> Message:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        raise invalid(f"{where} must be an object with a role", where)
    for name in ("tool_calls", "function_call", "audio"):
        if value.get(name):
            raise unsupported(f"{where}.{name}")
    return Message(value["role"], _content(f"{where}.content", value.get("content")))


def _content(where: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise invalid(f"{where} must be a text or a list of text parts", where)
    return "".join(_part(f"{where}[{index}]", part) for index, part in enumerate(value))


def _part(where: str, value: object) -> str:
    if not isinstance(value, dict) or value.get("type") != "text":
        raise Problem(400, "unsupported_parameter", f"{where} is not a text part, and nothing else is supported", where)
    text = value.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text must be a text", where)
    return text


def _number(content: dict[str, Any], name: str, kind: type[N], low: N, high: N) -> N | None:
    value = content.get(name)
    if value is None:
        return None
    allowed = (int,) if kind is int else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
        said = "a whole number" if kind is int else "a number"
        raise invalid(f"{name} must be {said} from {low} to {high}", name)
    return kind(value)


def _flag(content: dict[str, Any], name: str) -> bool:
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return value


def _options(content: dict[str, Any]) -> dict[str, Any]:
    options = content.get("stream_options", {})
    if not isinstance(options, dict):
        raise invalid("stream_options must be an object", "stream_options")
    for name in options.keys() - {"include_usage", "include_obfuscation"}:
        raise unsupported(f"stream_options.{name}")
    return options
