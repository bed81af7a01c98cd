"""Subwords: text comes back letter by letter, pieces know their place, and nothing in the text is taken for a mark."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.models.training.tokenizer import (
    END,
    PAD,
    SPECIAL_TOKENS,
    START,
    UNKNOWN,
    learn_subwords,
)

LINES = [
    'A cat\'s dog, (well) sleeps: "yes" - no... 3.5% of $40; x_y #1 & co/mp @home!',
    "Ça va, l'été ? « Oui », à bientôt… naïve œuvre",
    "Привет, мир! Ёжик — съел.",
    "日本語の文。 中文",
    "tab\there and nbsp\u00a0there",
    "a  b   c and <s> angle </s> brackets <pad> <unk>",
    "The smallest cats and the tallest dogs are walking, talking and barking.",
]
LETTERS = "".join(sorted(set("".join(LINES))))
texts = st.text(st.sampled_from(LETTERS), max_size=60).filter(lambda s: not s.startswith(" "))
words = st.lists(st.sampled_from(" ".join(LINES).split()), max_size=12).map(" ".join)
quickly = settings(max_examples=150, deadline=None)
TOKENIZER = learn_subwords(LINES * 3, 400)


def ids(text: str, tokenizer: PreTrainedTokenizerBase = TOKENIZER) -> list[int]:
    return tokenizer(text)["input_ids"]  # type: ignore[no-any-return]


def back(text: str, tokenizer: PreTrainedTokenizerBase = TOKENIZER) -> str:
    return str(tokenizer.decode(ids(text, tokenizer), skip_special_tokens=True))


class TestTheWayBack:
    @quickly
    @given(texts | words)
    def test_decoding_gives_the_text_back(self, text: str) -> None:
        text = unicodedata.normalize("NFC", text)
        assert back(text) == text

    @pytest.mark.parametrize(
        "text", [*LINES, "", "a", "!", "a ", "a  b", "(((", "'s", "l'été?", "3.5.3", "« »"]
    )
    def test_tricky_text(self, text: str) -> None:
        assert back(text) == text

    def test_letters_in_two_parts_come_back_in_one(self) -> None:
        assert back("l'e\u0301te\u0301") == "l'été"

    @pytest.mark.parametrize("text", [f"{END}", f"a {PAD} b{END}c {START}d {UNKNOWN} e"])
    def test_marks_that_stand_in_the_text_are_text(self, text: str) -> None:
        found = ids(text)
        assert found[-1] == SPECIAL_TOKENS.index(END) and min(found[:-1]) >= len(SPECIAL_TOKENS)
        assert back(text) == text

    def test_unknown_letters_are_one_unknown_piece_each(self) -> None:
        found = ids("cat ☃☃ dog")
        assert found.count(SPECIAL_TOKENS.index(UNKNOWN)) == 2
        assert TOKENIZER.decode(found, skip_special_tokens=True) == "cat  dog"
        assert [i for i in found if i >= len(SPECIAL_TOKENS)][:1] == ids("cat")[:1]


class TestPieces:
    def test_every_sentence_ends_and_only_ends_with_the_end(self) -> None:
        for line in [*LINES, ""]:
            found = ids(line)
            assert found[-1] == SPECIAL_TOKENS.index(END)
            assert all(i >= len(SPECIAL_TOKENS) for i in found[:-1])

    @quickly
    @given(words)
    def test_no_piece_crosses_a_words_edge(self, text: str) -> None:
        for piece in TOKENIZER.convert_ids_to_tokens(ids(text)[:-1]):
            inner = piece.removeprefix("▁")
            assert "▁" not in inner
            assert len(inner) <= 1 or not any(
                unicodedata.category(letter).startswith("P") for letter in inner
            )

    @quickly
    @given(texts | words)
    def test_offsets_say_where_a_piece_stands_in_the_text(self, text: str) -> None:
        text = unicodedata.normalize("NFC", text)
        encoded = TOKENIZER(text, return_offsets_mapping=True)
        covered: set[int] = set()
        for piece, (start, end) in zip(
            TOKENIZER.convert_ids_to_tokens(encoded["input_ids"])[:-1],
            encoded["offset_mapping"],
            strict=False,
        ):
            if (
                piece != "▁"
            ):  # the blank that is put before the first word has the place of its first letter
                assert piece.removeprefix("▁").replace("▁", " ") == text[start:end].removeprefix(
                    " "
                )
                covered.update(range(start, end))
        assert all(letter == " " for i, letter in enumerate(text) if i not in covered)

    def test_offsets_start_in_the_text_as_it_was_given(self) -> None:
        encoded = TOKENIZER("l'e\u0301te\u0301 va", return_offsets_mapping=True)
        last = encoded["offset_mapping"][-2]
        assert "l'e\u0301te\u0301 va"[slice(*last)].strip() == "va"


class TestTheVocabulary:
    @pytest.mark.parametrize("size", [10, 60, 120, 200])
    def test_it_is_never_larger_than_asked_for(self, size: int) -> None:
        """Even when the text has more letters than that: then the rarest are unknown."""
        tokenizer = learn_subwords(LINES, size)
        assert len(tokenizer) <= size and len(tokenizer) > min(size, 100) - 5
        assert set(back("a cat", tokenizer)) <= set("a cat")
        assert ids("e", tokenizer).count(SPECIAL_TOKENS.index(UNKNOWN)) == 0

    def test_marks_have_the_first_ids(self) -> None:
        assert TOKENIZER.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == [0, 1, 2, 3]
        assert (
            TOKENIZER.pad_token,
            TOKENIZER.eos_token,
            TOKENIZER.bos_token,
            TOKENIZER.unk_token,
        ) == SPECIAL_TOKENS

    def test_frequent_words_become_one_piece(self) -> None:
        tokenizer = learn_subwords(["the cat and the dog and the bird"] * 20, 60)
        assert tokenizer.convert_ids_to_tokens(ids("the and", tokenizer)) == ["▁the", "▁and", END]

    def test_learning_is_repeatable(self) -> None:
        assert (
            learn_subwords(iter(LINES), 200).get_vocab() == learn_subwords(LINES, 200).get_vocab()
        )

    def test_text_without_letters_is_refused(self) -> None:
        with pytest.raises(HeadwiseError, match="no letters"):
            learn_subwords(["", ""], 100)

    def test_it_is_the_same_after_saving(self, tmp_path: Path) -> None:
        TOKENIZER.save_pretrained(tmp_path)
        again = AutoTokenizer.from_pretrained(tmp_path)
        for text in [*LINES, f"a {END} b"]:
            assert ids(text, again) == ids(text) and back(text, again) == text
        assert again(text_target=LINES[0])["input_ids"] == ids(LINES[0])
        assert (again.pad_token_id, again.eos_token_id, again.bos_token_id) == (0, 1, 2)
