"""Messages to token ids, with what was sampled as it was sampled. Pure.

Invariants:
- an assistant message that a recorded request gave at this place of the conversation stands for that request's recorded ids; it is
  never tokenised again (decoding and encoding would train on ids that were not sampled);
- a history that was rewritten becomes a new branch, which shares with the recorded ones what it has in common with them;
- rendering a conversation that only grew tokenises its new messages alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from models.chat import Chat
from schemas.arrays import WIDTH_BYTES, pack_i4
from workers.gateway.branches import Branches, Point
from workers.gateway.parameters import Message
from workers.gateway.problems import invalid
from workers.ledger import RequestState, SessionState

REMEMBERED_TURNS = 16
"""Calls whose messages are kept to recognise the next one; a conversation with more live branches is rendered from its start."""


class Prompt(NamedTuple):
    """A prompt as a Request says it: the first `base_length` tokens of `base`'s sequence, then `tokens` (int32).

    `stranger` is the index of the first assistant message that no recorded request gave, or None. `messages` is the history, sharing
    its older part with earlier ones. `same` are the recorded requests with this very prompt, oldest first.
    """

    base: RequestState | None
    base_length: int
    tokens: bytes
    messages: list[Message]
    stranger: int | None
    same: list[RequestState]

    @property
    def length(self) -> int:
        """Number of tokens of the whole prompt."""
        return self.base_length + len(self.tokens) // WIDTH_BYTES


class _Turn(NamedTuple):
    messages: list[Message]
    request: RequestState


class Conversation:
    """What a gateway keeps of one session to render its calls: a cache over the fold, and never more than that."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._branches = Branches()
        self._turns: deque[_Turn] = deque(maxlen=REMEMBERED_TURNS)

    def prompt(self, session: SessionState, messages: list[Message]) -> Prompt:
        """Render a history.

        :raises Problem: 400, a role or a character is unknown to the model.
        """
        self._branches.take(session)
        point, messages, first = self._start(messages)
        tail: list[int] = [] if first else self._chat.opening()
        stranger: int | None = None
        for index in range(first, len(messages)):
            spoken = self._spoken(point, tail, messages[index])
            if spoken is not None:
                point, tail = self._branches.end_of(spoken), self._chat.closing(spoken.token_ids())
                continue
            if messages[index].role == "assistant" and stranger is None:
                stranger = index
            tail += self._message(index, messages[index])
        tail += self._chat.generation()
        return self._upon_base(point, pack_i4(tail), messages, stranger)

    def remember(self, messages: list[Message], request: RequestState) -> None:
        """`request` has the prompt that `messages` rendered to: the next call probably goes on from there."""
        self._turns.appendleft(_Turn(messages, request))

    def _start(self, messages: list[Message]) -> tuple[Point, list[Message], int]:
        """Where to begin: after the messages of the newest remembered turn that this history continues."""
        for turn in self._turns:
            count = len(turn.messages)
            if messages[:count] == turn.messages and self._branches.knows(turn.request):
                point = self._branches.before_prompt_end(turn.request, len(self._chat.generation()))
                return point, turn.messages + messages[count:], count
        return self._branches.root, messages, 0

    def _spoken(self, point: Point, tail: Sequence[int], message: Message) -> RequestState | None:
        """The newest ended request that gave this assistant message here."""
        if message.role != "assistant":
            return None
        prompt = pack_i4([*tail, *self._chat.generation()])
        reached, followed = self._branches.walk(point, prompt)
        if followed < len(prompt):
            return None
        for request in reversed(self._branches.prompted_at(reached)):
            if request.end is not None and self._chat.decode(request.token_ids()) == message.content:
                return request
        return None

    def _message(self, index: int, message: Message) -> list[int]:
        try:
            return self._chat.message(message.role, message.content)
        except ValueError as error:
            raise invalid(f"messages[{index}]: {error}", f"messages[{index}]") from None

    def _upon_base(self, point: Point, tail: bytes, messages: list[Message], stranger: int | None) -> Prompt:
        reached, followed = self._branches.walk(point, tail)
        base, base_length = self._branches.base_at(reached)
        same = self._branches.prompted_at(reached) if followed == len(tail) else []
        return Prompt(base, base_length, tail[followed:], messages, stranger, same)
