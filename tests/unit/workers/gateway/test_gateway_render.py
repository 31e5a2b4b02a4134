from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.chat import CharacterChat
from schemas.arrays import pack_f4, pack_i4
from schemas.session import Claim, Open, Request, Sampling
from schemas.span import Span
from workers.gateway.parameters import Message
from workers.gateway.problems import Problem
from workers.gateway.render import REMEMBERED_TURNS, Conversation, Prompt
from workers.ledger import Ledger, RequestState, SessionState

BOS, END, ASSISTANT = 1, 2, 3
PAIR = 58


class PairChat(CharacterChat):
    """One more token, for the letters `ab`: as in every real vocabulary, a text has several encodings. Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    @property
    def vocabulary_size(self) -> int:
        return PAIR + 1

    def encode(self, text: str) -> list[int]:
        self.asked += len(text)
        return super().encode(text)

    def decode(self, tokens: Sequence[int]) -> str:
        self.asked += len(tokens)
        return "".join("ab" if token == PAIR else super(PairChat, self).decode([token]) for token in tokens)


class Folded:
    """One session; `call` is what a gateway does with a call and an owner with its Request."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.ledger.apply(0, Claim(epoch=1, node="n", incarnation="i"))
        self.ledger.apply(1, Open(nonce=b"o", check="abcdef"))

    @property
    def session(self) -> SessionState:
        return self.ledger.sessions[1]

    def call(self, conversation: Conversation, messages: list[Message], sampled: Sequence[int]) -> tuple[Prompt, RequestState]:
        prompt = conversation.prompt(self.session, messages)
        offset = self.ledger.next
        base = None if prompt.base is None else prompt.base.offset
        record = Request(
            session=1, nonce=b"%d" % offset, tokens=prompt.tokens, base=base, base_length=prompt.base_length,
            sampling=Sampling(max_tokens=9),
        )
        self.ledger.apply(offset, record)
        logprobs = pack_f4([-1.0] * len(sampled))
        span = Span(
            session=1, request=offset, epoch=1, start=0, tokens=pack_i4(sampled), logprobs=logprobs, version=0, kv_version=0, finish="stop"
        )
        self.ledger.apply(offset + 1, span)
        request = self.session.requests[offset]
        conversation.remember(prompt.messages, request)
        return prompt, request


def user(text: str) -> Message:
    return Message("user", text)


def assistant(text: str) -> Message:
    return Message("assistant", text)


def test_the_second_prompt_extends_the_recorded_ids_exactly() -> None:
    """`ab` was sampled as one token; tokenised again it would be two."""
    folded, conversation = Folded(), Conversation(PairChat())
    _, first = folded.call(conversation, [user("c")], [PAIR, END])
    prompt, second = folded.call(conversation, [user("c"), assistant("ab"), user("d")], [END])
    letter_c, letter_d = 8, 9
    assert second.prompt_ids() == [BOS, letter_c, ASSISTANT, PAIR, END, letter_d, ASSISTANT]
    assert (prompt.base, prompt.base_length, prompt.tokens) == (first, 5, pack_i4([letter_d, ASSISTANT]))
    assert prompt.stranger is None


def test_a_turn_that_ran_into_its_budget_is_closed_first() -> None:
    folded, conversation = Folded(), Conversation(PairChat())
    folded.call(conversation, [user("c")], [PAIR])
    prompt, _ = folded.call(conversation, [user("c"), assistant("ab"), user("d")], [END])
    assert (prompt.base_length, prompt.tokens) == (4, pack_i4([END, 9, ASSISTANT]))


def test_a_gateway_that_did_not_serve_the_first_turn_renders_the_same() -> None:
    folded, chat = Folded(), PairChat()
    folded.call(Conversation(chat), [user("c")], [PAIR, END])
    prompt, second = folded.call(Conversation(chat), [user("c"), assistant("ab"), user("d")], [END])
    assert second.prompt_ids() == [BOS, 8, ASSISTANT, PAIR, END, 9, ASSISTANT]
    assert prompt.stranger is None


def test_an_assistant_message_that_nobody_gave_is_a_new_branch() -> None:
    folded, conversation = Folded(), Conversation(PairChat())
    _, first = folded.call(conversation, [user("c")], [PAIR, END])
    prompt, second = folded.call(conversation, [user("c"), assistant("ax"), user("d")], [END])
    assert second.prompt_ids() == [BOS, 8, ASSISTANT, 6, 6 + 23, END, 9, ASSISTANT]
    assert (prompt.base, prompt.base_length, prompt.stranger) == (first, 3, 1)


def test_a_running_answer_is_not_yet_part_of_the_history() -> None:
    folded, conversation = Folded(), Conversation(PairChat())
    offset = folded.ledger.next
    prompt = conversation.prompt(folded.session, [user("c")])
    folded.ledger.apply(offset, Request(session=1, nonce=b"n", tokens=prompt.tokens, sampling=Sampling(max_tokens=9)))
    part = Span(session=1, request=offset, epoch=1, start=0, tokens=pack_i4([PAIR]), logprobs=pack_f4([-1.0]), version=0, kv_version=0)
    folded.ledger.apply(offset + 1, part)
    assert conversation.prompt(folded.session, [user("c"), assistant("ab"), user("d")]).stranger == 1


def test_a_call_that_is_made_again_shares_its_whole_prompt() -> None:
    folded, conversation = Folded(), Conversation(PairChat())
    _, first = folded.call(conversation, [user("c")], [PAIR, END])
    prompt, _ = folded.call(conversation, [user("c")], [END])
    assert (prompt.base, prompt.base_length, prompt.tokens) == (first, 3, b"")


@pytest.mark.parametrize(("message", "named"), [(user("É"), "messages[1]"), (Message("wizard", "a"), "messages[1]")])
def test_what_the_model_cannot_say_is_refused_by_its_place(message: Message, named: str) -> None:
    with pytest.raises(Problem) as caught:
        Conversation(PairChat()).prompt(Folded().session, [user("a"), message])
    assert (caught.value.status, caught.value.param) == (400, named)


def cost_of_turn(number: int) -> int:
    """Characters and tokens that went through the tokenizer in this turn of a conversation with one letter a message."""
    chat, folded = PairChat(), Folded()
    conversation, messages = Conversation(chat), list[Message]()
    for turn in range(number):
        messages = [*(Message(*message) for message in messages), user("cd"[turn % 2])]
        before = chat.asked
        folded.call(conversation, messages, [PAIR, END])
        messages.append(assistant("ab"))
    return chat.asked - before


def test_the_cost_of_a_turn_stays_flat() -> None:
    assert cost_of_turn(128) == cost_of_turn(8) <= 8


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_sampled_ids_are_never_tokenised_again(data: st.DataObject) -> None:
    """Random conversations that go on, go back, are told anew, by one of two gateways; against a naive history of ids."""
    chat, folded = PairChat(), Folded()
    gateways = [Conversation(chat), Conversation(chat)]
    calls: list[tuple[list[Message], list[int], list[int]]] = []
    for _ in range(data.draw(st.integers(1, REMEMBERED_TURNS // 2))):
        history = [user(data.draw(st.sampled_from(["a", "b"])))]
        if calls and data.draw(st.integers(0, 3)):
            messages, _, sampled = data.draw(st.sampled_from(calls))
            said = chat.decode(sampled) if data.draw(st.integers(0, 4)) else "b"
            history = [*messages, assistant(said), user(data.draw(st.sampled_from(["a", "b"])))]
        expected = naive(chat, calls, history)
        sampled = [*data.draw(st.lists(st.sampled_from([6, 7, PAIR]), max_size=3)), *data.draw(st.sampled_from([[END], []]))]
        prompt, request = folded.call(data.draw(st.sampled_from(gateways)), history, sampled or [END])
        assert request.prompt_ids() == expected
        assert prompt.length == len(expected)
        calls.append((history, expected, sampled or [END]))


def naive(chat: PairChat, calls: list[tuple[list[Message], list[int], list[int]]], history: list[Message]) -> list[int]:
    """The newest call with this prompt and this text gave an assistant message; otherwise it is text."""
    ids = chat.opening()
    for message in history:
        given = [
            sampled for _, prompt, sampled in calls
            if message.role == "assistant" and prompt == [*ids, ASSISTANT] and chat.decode(sampled) == message.content
        ]
        told = chat.message(message.role, message.content)
        ids = [*ids, ASSISTANT, *given[-1], *chat.closing(given[-1])] if given else [*ids, *told]
    return [*ids, ASSISTANT]
