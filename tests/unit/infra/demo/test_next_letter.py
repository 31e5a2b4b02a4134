"""The demo's task, by hand."""

from __future__ import annotations

import pytest

from infra.demo.next_letter import HELD_OUT, WORD_LENGTH, WORDS, answer, payload, score, words


@pytest.mark.parametrize(("word", "right"), [("hello", "ifmmp"), ("robot", "spcpu"), ("zebra", "afcsb"), ("abxyz", "bcyza")])
def test_answers(word: str, right: str) -> None:
    assert answer(word) == right
    assert score(word, right, ended=True) == 1.0


@pytest.mark.parametrize(
    ("said", "ended", "value"),
    [
        ("ifmmp", False, 0.0),  # no end token
        ("ifmm", True, 0.8),  # too short: four of five
        ("ifmmpp", True, 5 / 6),  # too long: five of six
        ("fmmpi", True, 0.2),  # the same letters elsewhere: only the second m is in place
        ("hello", True, 0.0),
        ("", True, 0.0),
    ],
)
def test_scores(said: str, ended: bool, value: float) -> None:
    assert score("hello", said, ended) == pytest.approx(value)


def test_words_are_distinct_and_a_function_of_the_seed() -> None:
    drawn = words(3)
    everything = drawn.train + drawn.held_out
    assert (len(everything), len(set(everything)), len(drawn.held_out)) == (WORDS, WORDS, HELD_OUT)
    assert all(len(word) == WORD_LENGTH and word.isalpha() and word.islower() and word.isascii() for word in everything)
    assert words(3) == drawn
    assert words(4) != drawn


def test_the_payload_is_the_word() -> None:
    assert payload("hello") == {"word": "hello"}
