"""Between messages and token ids: the tokenizer and the chat template behind one protocol, `Chat`. No torch.

Invariants:
- `decode(encode(text)) == text`, and `encode` yields no special token: a message cannot forge a turn;
- history grows by appending: `opening + message(user) + generation + sampled + closing(sampled) + message(user) + generation` are
  the tokens of the whole history rendered at once, whenever the sampled tokens are the encoding of their text (with or without
  their end token). A gateway may therefore extend recorded tokens and never tokenises a sampled turn again;
- `tokenizer_sha256` and `template_sha256` depend on content alone, and are equal after `save` and `load_chat`.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from schemas.errors import UsageError

__all__ = ["CHAT_FILE", "CharacterChat", "Chat", "NumberChat", "load_chat"]

CHAT_FILE = "tokenizer.json"

PAD, BOS, END, ASSISTANT, SYSTEM, TOOL = "<pad>", "<bos>", "<end>", "<asst>", "<sys>", "<tool>"
SPECIALS = (PAD, BOS, END, ASSISTANT, SYSTEM, TOOL)
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .,!?:;'\"()-+*/="

TEMPLATE: dict[str, tuple[list[str], list[str]]] = {
    "user": ([], []),
    "assistant": ([ASSISTANT], [END]),
    "system": ([SYSTEM], [END]),
    "developer": ([SYSTEM], [END]),
    "tool": ([TOOL], [END]),
}
"""Role -> the special tokens before and after a message's text. A user's message is its text alone."""

_NUMBER_OR_CHARACTER = re.compile(r"(?:0|[1-9][0-9]{0,8}) |.", re.DOTALL)


class Chat(Protocol):
    """What the gateway, the reward rules and the trainer need to know of a model's language."""

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids; they run from 0."""
        ...

    @property
    def stop_token_ids(self) -> list[int]:
        """Tokens that end a sampled turn."""
        ...

    @property
    def tokenizer_sha256(self) -> str:
        """Hex digest of the vocabulary."""
        ...

    @property
    def template_sha256(self) -> str:
        """Hex digest of the chat template."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without special tokens.

        :raises ValueError: names a character that the vocabulary lacks.
        """
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of tokens, special tokens left out.

        :raises ValueError: names an id outside the vocabulary.
        """
        ...

    def opening(self) -> list[int]:
        """What every sequence begins with."""
        ...

    def message(self, role: str, content: str) -> list[int]:
        """A whole message of the history; an assistant's with its generation prefix and its end token.

        :raises ValueError: the role or a character is unknown.
        """
        ...

    def generation(self) -> list[int]:
        """What precedes a sampled turn."""
        ...

    def closing(self, sampled: Sequence[int]) -> list[int]:
        """What must follow the sampled tokens of a turn before the next message: the end token, unless they end with it."""
        ...

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json` into a model folder that exists."""
        ...


class _TemplatedChat(ABC):
    """The template of `TEMPLATE` over any numbering of characters and special tokens."""

    KIND: ClassVar[str]
    """Names the class in `tokenizer.json`."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Token ids of plain text, without special tokens."""

    @abstractmethod
    def _special(self, name: str) -> int:
        """The id of a special token."""

    @abstractmethod
    def _vocabulary(self) -> dict[str, Any]:
        """What tells this vocabulary from others of its kind."""

    @property
    def stop_token_ids(self) -> list[int]:
        """The end token alone."""
        return [self._special(END)]

    @cached_property
    def tokenizer_sha256(self) -> str:
        """Hex digest of the kind and of its vocabulary in its order."""
        return _digest({"chat": self.KIND, **self._vocabulary()})

    @cached_property
    def template_sha256(self) -> str:
        """Hex digest of the template: opening, generation prefix, and what surrounds each role's text."""
        return _digest(_template())

    def opening(self) -> list[int]:
        """`<bos>`."""
        return [self._special(BOS)]

    def message(self, role: str, content: str) -> list[int]:
        """A user's text alone; any other role's between its special token and `<end>`.

        :raises ValueError: names the role or the character that is unknown.
        """
        if role not in TEMPLATE:
            raise ValueError(f"role {role!r} is unknown: use one of {', '.join(TEMPLATE)}")
        before, after = ([self._special(name) for name in names] for names in TEMPLATE[role])
        return [*before, *self.encode(content), *after]

    def generation(self) -> list[int]:
        """`<asst>`."""
        return [self._special(ASSISTANT)]

    def closing(self, sampled: Sequence[int]) -> list[int]:
        """`<end>`, unless the sampled tokens end with it."""
        end = self._special(END)
        return [] if sampled and sampled[-1] == end else [end]

    def save(self, folder: Path) -> None:
        """Write `tokenizer.json`: kind, vocabulary and template, readable by `load_chat`."""
        content = {"chat": self.KIND, **self._vocabulary(), "template": _template()}
        (folder / CHAT_FILE).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


class CharacterChat(_TemplatedChat):
    """One token per character, and six special tokens; by default the demo's vocabulary of 58.

    One user turn renders to `<bos>` + characters + `<asst>`. Two user messages in a row are one run of characters.
    Ids: the special tokens in the order of `SPECIALS`, then `characters` in their order.
    """

    KIND = "character"

    def __init__(self, characters: str = CHARACTERS) -> None:
        if len(set(characters)) != len(characters):
            raise ValueError("a character stands twice in the vocabulary")
        self._characters = characters
        self._ids = {symbol: number for number, symbol in enumerate((*SPECIALS, *characters))}
        self._symbols = ("",) * len(SPECIALS) + tuple(characters)

    @property
    def vocabulary_size(self) -> int:
        """Number of token ids."""
        return len(self._symbols)

    def encode(self, text: str) -> list[int]:
        """Token ids, one per character.

        :raises ValueError: names the first character that the vocabulary lacks, and its index.
        """
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            (unknown,) = error.args
            place = text.index(unknown)
            raise ValueError(f"character {unknown!r} at index {place} is not in the model's vocabulary: {self._characters}") from None

    def decode(self, tokens: Sequence[int]) -> str:
        """One character per token, special tokens left out.

        :raises ValueError: names an id outside the vocabulary.
        """
        _require_within(tokens, self.vocabulary_size)
        return "".join([self._symbols[token] for token in tokens])

    def _special(self, name: str) -> int:
        return self._ids[name]

    def _vocabulary(self) -> dict[str, Any]:
        return {"specials": list(SPECIALS), "characters": self._characters}


class NumberChat(_TemplatedChat):
    """The language of the paced engine: a token below 10^9 is its own number and a space, `7` is `"7 "`; nothing stops a turn early.

    Any other text is one token per character, 2 * 10^9 + its code point; special tokens begin at 2.1 * 10^9. So agents may send any text,
    and what they are answered says which tokens were sampled.
    """

    KIND = "number"
    FIRST_CHARACTER = 2_000_000_000
    FIRST_SPECIAL = 2_100_000_000

    @property
    def vocabulary_size(self) -> int:
        """One more than the greatest id."""
        return self.FIRST_SPECIAL + len(SPECIALS)

    @property
    def stop_token_ids(self) -> list[int]:
        """None: the paced engine takes stop tokens for indexes."""
        return []

    def encode(self, text: str) -> list[int]:
        """Token ids: numbers that a space follows are theirs, any other character is one."""
        return [int(part) if len(part) > 1 else self.FIRST_CHARACTER + ord(part) for part in _NUMBER_OR_CHARACTER.findall(text)]

    def decode(self, tokens: Sequence[int]) -> str:
        """Numbers and characters, special tokens left out.

        :raises ValueError: names an id outside the vocabulary.
        """
        _require_within(tokens, self.vocabulary_size)
        character = self.FIRST_CHARACTER
        return "".join([f"{token} " if token < character else self._text(token) for token in tokens])

    def _text(self, token: int) -> str:
        return "" if token >= self.FIRST_SPECIAL else chr(token - self.FIRST_CHARACTER)

    def _special(self, name: str) -> int:
        return self.FIRST_SPECIAL + SPECIALS.index(name)

    def _vocabulary(self) -> dict[str, Any]:
        return {"specials": list(SPECIALS)}


def _require_within(tokens: Sequence[int], size: int) -> None:
    if tokens and not 0 <= min(tokens) <= max(tokens) < size:
        outside = next(token for token in tokens if not 0 <= token < size)
        raise ValueError(f"token {outside} is outside the vocabulary of {size}")


def load_chat(folder: Path) -> Chat:
    """Read the chat of a model folder.

    :raises UsageError: there is no `tokenizer.json`, or it was not written by `Chat.save` of this software.
    """
    path = folder / CHAT_FILE
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as the chat of a model: {error}") from error
    return _chat_of(path, content)


def _chat_of(path: Path, content: object) -> Chat:
    if not isinstance(content, dict) or content.get("chat") not in (CharacterChat.KIND, NumberChat.KIND):
        raise UsageError(f'{path} does not describe a chat that this software knows: expected "chat": "character" or "number"')
    if content.get("specials") != list(SPECIALS) or content.get("template") != _template():
        raise UsageError(f"{path} was written for other special tokens or another template than this software has")
    if content["chat"] == NumberChat.KIND:
        return NumberChat()
    if not isinstance(content.get("characters"), str):
        raise UsageError(f"{path} lacks its characters")
    return CharacterChat(content["characters"])


def _template() -> dict[str, Any]:
    messages = {role: [before, after] for role, (before, after) in TEMPLATE.items()}
    return {"opening": [BOS], "generation": [ASSISTANT], "messages": messages}


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
