"""Answers in OpenAI's shape: a chat completion, and the chunks of a streamed one. Pure.

Invariants: text, logprobs and usage come from the accepted tokens of the fold alone; the texts of all chunks, joined, are the text of
the blocking answer; logprobs have one item per token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from models.chat import Chat
from schemas.arrays import WIDTH_BYTES, unpack_f4, unpack_i4
from workers.ledger import RequestState

REPLACEMENT = "�"
"""What decoding gives where a character's bytes are not all there yet."""

DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": waiting\n\n"


@dataclass(frozen=True, slots=True)
class Heading:
    """What all parts of one answer share. `session` is the session's id as agents know it."""

    partition: int
    session: str
    request: RequestState
    model: str
    created: int

    def fields(self, kind: str) -> dict[str, Any]:
        """The fields that completion and chunks have in common."""
        name = f"chatcmpl-{self.partition}-{self.request.offset}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def extension(self, timing_ms: dict[str, float]) -> dict[str, Any]:
        """The `seamlessflow` field: what a trainer's agent may want to know, and no other client minds."""
        versions = [part.version for part in self.request.parts if part.size]
        span = [min(versions), max(versions)] if versions else []
        return {"session": self.session, "request": self.request.offset, "versions": span, "timing_ms": timing_ms}


def usage(request: RequestState) -> dict[str, int]:
    """Token counts of a request so far."""
    return {
        "prompt_tokens": request.prompt_length,
        "completion_tokens": request.accepted,
        "total_tokens": request.length,
    }


def logprob_items(chat: Chat, tokens: Sequence[int], logprobs: Sequence[float]) -> list[dict[str, Any]]:
    """One item per token: its text, its log-probability in nats, its UTF-8 bytes."""
    items = []
    for token, logprob in zip(tokens, logprobs, strict=True):
        text = chat.decode([token])
        items.append({"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []})
    return items


def completion(chat: Chat, heading: Heading, *, logprobs: bool, timing_ms: dict[str, float]) -> dict[str, Any]:
    """A whole answer, of a request that ended by `stop` or `length`."""
    request = heading.request
    assert request.end is not None
    tokens = request.token_ids()
    shown = {"content": logprob_items(chat, tokens, request.logprob_values()), "refusal": None} if logprobs else None
    choice = {
        "index": 0,
        "finish_reason": request.end.why,
        "message": {"role": "assistant", "content": chat.decode(tokens), "refusal": None},
        "logprobs": shown,
    }
    fields = heading.fields("chat.completion")
    return {**fields, "choices": [choice], "usage": usage(request), "seamlessflow": heading.extension(timing_ms)}


@dataclass(slots=True)
class Chunks:
    """The chunks of one streamed answer, in their order. `text` holds tokens back whose characters are not complete."""

    chat: Chat
    heading: Heading
    logprobs: bool
    include_usage: bool
    _shown: int = 0
    _pending: list[int] = field(default_factory=list)

    def opening(self) -> dict[str, Any]:
        """The first chunk: the role."""
        return self._chunk({"role": "assistant", "content": ""}, None)

    def news(self) -> dict[str, Any] | None:
        """What was accepted since the last time; None where nothing can be shown."""
        request = self.heading.request
        if request.accepted == self._shown and not (self._pending and request.end):
            return None
        begin = self._shown * WIDTH_BYTES
        tokens, values = unpack_i4(bytes(request.tokens[begin:])), unpack_f4(bytes(request.logprobs[begin:]))
        self._shown += len(tokens)
        items = logprob_items(self.chat, tokens, values) if self.logprobs else None
        return self._chunk({"content": self._text(tokens)}, None, items)

    def closing(self, timing_ms: dict[str, float]) -> dict[str, Any]:
        """The chunk with the finish reason."""
        assert self.heading.request.end is not None
        return {**self._chunk({}, self.heading.request.end.why), "seamlessflow": self.heading.extension(timing_ms)}

    def usage(self) -> dict[str, Any]:
        """The usage chunk, without choices."""
        return {**self.heading.fields("chat.completion.chunk"), "choices": [], "usage": usage(self.heading.request)}

    def _text(self, tokens: Sequence[int]) -> str:
        self._pending += tokens
        text = self.chat.decode(self._pending)
        if text.endswith(REPLACEMENT) and self.heading.request.end is None:
            return ""
        self._pending.clear()
        return text

    def _chunk(self, delta: dict[str, Any], finish: str | None, items: list[dict[str, Any]] | None = None) -> dict[str, Any]:
        shown = None if items is None else {"content": items, "refusal": None}
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": shown}
        fields = self.heading.fields("chat.completion.chunk")
        return {**fields, "choices": [choice], "usage": None} if self.include_usage else {**fields, "choices": [choice]}
