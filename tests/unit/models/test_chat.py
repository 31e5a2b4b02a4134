from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat import CHARACTERS, CharacterChat, Chat, NumberChat, load_chat
from schemas.errors import UsageError

BOS, END, ASSISTANT, SYSTEM, TOOL = 1, 2, 3, 4, 5
TEXTS = st.text(CHARACTERS, max_size=20)


def test_one_user_turn_renders_to_bos_letters_and_the_assistants_token() -> None:
    chat = CharacterChat()
    rendered = chat.opening() + chat.message("user", "hello") + chat.generation()
    assert rendered == [BOS, 6 + 7, 6 + 4, 6 + 11, 6 + 11, 6 + 14, ASSISTANT]  # h e l l o are the letters 7 4 11 11 14


def test_the_vocabulary_has_58_tokens_and_ends_a_turn_with_one() -> None:
    chat = CharacterChat()
    assert (chat.vocabulary_size, chat.stop_token_ids) == (58, [END])


def test_roles_are_delimited_by_special_tokens() -> None:
    chat = CharacterChat()
    assert chat.message("assistant", "a") == [ASSISTANT, 6, END]
    assert chat.message("system", "a") == chat.message("developer", "a") == [SYSTEM, 6, END]
    assert chat.message("tool", "a") == [TOOL, 6, END]


@given(TEXTS)
def test_text_survives_and_never_makes_a_special_token(text: str) -> None:
    chat = CharacterChat()
    tokens = chat.encode(text)
    assert chat.decode(tokens) == text
    assert all(token >= 6 for token in tokens)


@given(TEXTS, TEXTS, TEXTS, st.booleans(), st.sampled_from([CharacterChat(), NumberChat()]))
def test_recorded_tokens_extend_to_the_whole_history(first: str, answer: str, second: str, ended: bool, chat: Chat) -> None:
    end = chat.message("assistant", "")[-1:]
    sampled = chat.encode(answer) + (end if ended else [])
    recorded = chat.opening() + chat.message("user", first) + chat.generation() + sampled
    extended = recorded + chat.closing(sampled) + chat.message("user", second) + chat.generation()
    history = chat.message("user", first) + chat.message("assistant", answer) + chat.message("user", second)
    assert extended == chat.opening() + history + chat.generation()


@given(st.text() | st.text("0123456789 ", max_size=30))
def test_any_text_survives_as_numbers_and_makes_no_special_token(text: str) -> None:
    chat = NumberChat()
    tokens = chat.encode(text)
    assert chat.decode(tokens) == text
    assert all(token < NumberChat.FIRST_SPECIAL for token in tokens)


@given(st.lists(st.integers(0, 10**9 - 1)))
def test_sampled_numbers_survive_as_text(tokens: list[int]) -> None:
    chat = NumberChat()
    assert chat.encode(chat.decode(tokens)) == tokens
    assert chat.decode(tokens) == "".join(f"{token} " for token in tokens)


def test_numbers_and_special_tokens_fit_in_32_bits() -> None:
    chat = NumberChat()
    assert chat.vocabulary_size <= 2**31
    assert chat.encode("\U0010ffff") < chat.opening()
    assert chat.stop_token_ids == []
    with pytest.raises(ValueError, match="token 2147483647"):
        chat.decode([2**31 - 1])


def test_special_tokens_are_left_out_of_text() -> None:
    assert CharacterChat().decode([BOS, 6, 7, 0, END]) == "ab"


@pytest.mark.parametrize(("text", "named"), [("aAb", "'A' at index 1"), ("é", "'é' at index 0")])
def test_an_unknown_character_is_named(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CharacterChat().encode(text)


def test_an_unknown_role_and_an_unknown_token_are_named() -> None:
    with pytest.raises(ValueError, match="'wizard'"):
        CharacterChat().message("wizard", "a")
    with pytest.raises(ValueError, match="token 58"):
        CharacterChat().decode([6, 58])


def test_a_chat_is_equal_after_saving(tmp_path: Path) -> None:
    CharacterChat("abc").save(tmp_path)
    chat, other = load_chat(tmp_path), CharacterChat()
    assert chat.encode("cab") == [8, 6, 7]
    assert (chat.tokenizer_sha256, chat.template_sha256) == (CharacterChat("abc").tokenizer_sha256, other.template_sha256)
    assert chat.tokenizer_sha256 != other.tokenizer_sha256


def test_a_number_chat_is_equal_after_saving(tmp_path: Path) -> None:
    NumberChat().save(tmp_path)
    chat = load_chat(tmp_path)
    assert isinstance(chat, NumberChat)
    assert chat.tokenizer_sha256 == NumberChat().tokenizer_sha256 != CharacterChat("").tokenizer_sha256


def test_files_that_are_no_chat_are_usage_errors(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"tokenizer\.json"):
        load_chat(tmp_path)
    for content in ("{", "[]", '{"chat": "bpe"}', json.dumps({"chat": "character", "characters": "ab", "specials": ["<pad>"]})):
        (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(UsageError, match=r"tokenizer\.json"):
            load_chat(tmp_path)
