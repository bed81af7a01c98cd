"""One-sided text as batches: what is asked for, what is hidden, what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, normalizers
from torch import Tensor
from transformers import CTRLTokenizer

from headwise.core.errors import HeadwiseError
from headwise.data.text import Text
from headwise.models.token_rows import IGNORED
from headwise.models.training.language import MASKED, Lines, Packed
from headwise.models.training.token_batches import key
from models.attention.families import tiny
from models.training.letters import END, LETTERS, MASK, PAD, START, letters


def lines(
    *sentences: str, causal: bool = True, longest: int = 20, form: str = "<s> $A </s>"
) -> Lines:
    return Lines(Text.from_lines(sentences), letters(form), longest, causal)


def only(data: Lines, seed: int = 0) -> dict[str, Tensor]:
    (batch,) = data.batches(seed=seed)
    return batch


class TestCausal:
    def test_labels_are_the_next_token_and_stand_where_it_is_predicted(self) -> None:
        batch = only(lines("a b c", "d"))
        a, b, c, d = (5 + place for place in range(4))
        assert batch["input_ids"].tolist() == [[START, d, END, PAD, PAD], [START, a, b, c, END]]
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]
        assert batch["labels"].tolist() == [
            [d, END, IGNORED, IGNORED, IGNORED],
            [a, b, c, END, IGNORED],
        ]
        assert batch["rows"].tolist() == [1, 0], (
            "sentences go by length, and say where they stood in the text"
        )

    def test_a_tokenizer_without_padding_or_end(self) -> None:
        tokenizer = letters("$A", pad_token=None, eos_token=None)
        batch = only(Lines(Text.from_lines(["a b c", "d e"]), tokenizer, 20, causal=True))
        assert batch["attention_mask"].sum().item() == 5
        assert (batch["labels"] != IGNORED).sum(1).tolist() == [1, 2]

    def test_what_is_too_short_or_too_long_is_counted(self) -> None:
        data = lines("a", "b c", "d e f g", "h i j k l", form="$A", longest=3)
        assert data.left_out == {"without a token to predict": 1, "longer than 3 tokens": 2}
        assert len(data) == 1 and only(data)["rows"].tolist() == [1]

    @settings(max_examples=40, deadline=None)
    @given(st.lists(st.integers(1, 26), min_size=1, max_size=6), st.integers(2, 9), st.data())
    def test_windows_predict_every_token_once_with_enough_before_it(
        self, sizes: list[int], longest: int, data: st.DataObject
    ) -> None:
        stride = data.draw(st.integers(1, longest - 1))
        text = Text.from_lines([" ".join(LETTERS[:size]) for size in sizes])
        if max(sizes) < 2:
            return
        windows = Lines(text, letters("$A"), longest, True, stride)
        predicted: dict[int, list[int]] = {}
        for batch in windows.batches(tokens=20):
            for row, ids, mask, labels in zip(
                batch["rows"].tolist(),
                batch["input_ids"],
                batch["attention_mask"],
                batch["labels"],
                strict=True,
            ):
                read = ids[: int(mask.sum())]
                assert len(read) <= longest
                for place in (labels != IGNORED).nonzero().flatten().tolist():
                    assert labels[place] == read[place + 1]
                    whole = int(read[0]) == 5  # the window begins where the text does
                    assert whole or place + 1 >= longest - stride
                    predicted.setdefault(row, []).append(int(labels[place]))
        wanted = {
            row: [5 + place for place in range(1, size)]
            for row, size in enumerate(sizes)
            if size > 1
        }
        assert predicted == wanted
        assert sum(windows.left_out.values()) == sum(size < 2 for size in sizes)

    def test_nothing_to_ask_for(self) -> None:
        with pytest.raises(HeadwiseError, match=r"2 sentences has from 2 to 20 tokens: give other"):
            lines("a", "b", form="$A")


class TestMasked:
    TEXT = ("a b c d e f g h i j k l m n", "a ! b", "q")

    def test_hidden_tokens_are_what_is_asked_for(self) -> None:
        batch, plain = only(lines(*self.TEXT, causal=False)), only(lines(*self.TEXT))["input_ids"]
        hidden = batch["input_ids"] == MASK
        assert torch.equal(hidden, batch["labels"] != IGNORED)
        assert torch.equal(batch["labels"][hidden], plain[hidden])
        assert torch.equal(batch["input_ids"][~hidden], plain[~hidden])
        assert hidden.sum(1).tolist() == [1, 1, round(MASKED * 14)]

    @settings(max_examples=20)
    @given(st.integers(0, 2**31), st.integers(1, 18))
    def test_special_tokens_and_padding_are_never_hidden(self, seed: int, length: int) -> None:
        batch = only(lines(" ".join(LETTERS[:length]), "a ! b", "?  ! c", causal=False), seed)
        assert not set(batch["labels"].unique().tolist()) & set(range(5))
        assert (batch["labels"] != IGNORED).sum(1).tolist()[:2] == [1, 1]

    def test_drawn_by_the_seed_and_by_nothing_else(self) -> None:
        data = lines(*self.TEXT, causal=False)
        assert torch.equal(only(data)["labels"], only(data)["labels"])
        others = [only(data, seed)["labels"][2] for seed in range(1, 6)]
        assert any(not torch.equal(only(data)["labels"][2], other) for other in others)
        one_by_one = {int(batch["rows"]): batch["labels"][0] for batch in data.batches(tokens=1)}
        for place, labels in zip(only(data)["rows"].tolist(), only(data)["labels"], strict=True):
            assert torch.equal(one_by_one[place], labels[: len(one_by_one[place])]), (
                "batches change nothing"
            )

    def test_a_sentence_hides_the_same_tokens_in_any_part_and_order_of_the_text(self) -> None:
        """They used to go by the line's number, so that scores of a masked model changed with the order of lines."""

        def hidden(text: list[str]) -> dict[tuple[int, ...], list[int]]:
            batch = only(lines(*text, causal=False))
            found = {}
            for ids, mask, labels in zip(
                batch["input_ids"], batch["attention_mask"], batch["labels"], strict=True
            ):
                length = int(mask.sum())
                whole = torch.where(labels != IGNORED, labels, ids)[:length]
                found[tuple(whole.tolist())] = labels[:length].tolist()
            return found

        text = [" ".join(LETTERS[first : first + 7]) for first in range(10)]
        whole = hidden(text)
        assert hidden(text[::-1]) == whole and len(whole) == 10
        part = hidden(text[5:])
        assert part == {row: whole[row] for row in part} and len(part) == 5

    def test_a_sentence_of_special_tokens_asks_for_nothing(self) -> None:
        data = lines("! ?", "a", causal=False)
        assert len(data) == 1 and data.left_out["without a token to predict"] == 1

    def test_without_a_mask_token(self) -> None:
        with pytest.raises(HeadwiseError, match="tokenizer has no mask token: use its own"):
            next(
                Lines(Text.from_lines(["a"]), letters(mask_token=None), 20, causal=False).batches()
            )


@settings(max_examples=30)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=30), st.integers(1, 60))
def test_batches_hold_every_sentence_once_and_no_more_than_asked(
    sizes: list[int], tokens: int
) -> None:
    data = lines(*(" ".join(LETTERS[:size]) for size in sizes))
    places, before = [], 0
    for batch in data.batches(tokens):
        count, length = batch["input_ids"].shape
        assert count == 1 or count * length <= tokens
        assert batch["attention_mask"].sum(1).min() >= before, "shortest first"
        before = length
        assert batch["attention_mask"].sum(1).tolist() == [
            sizes[place] + 2 for place in batch["rows"]
        ]
        places += batch["rows"].tolist()
    assert sorted(places) == list(range(len(sizes)))


class TestPacked:
    """One stream of tokens in rows of one length."""

    @pytest.mark.parametrize("form", ["<s> $A </s>", "<s> $A", "$A"])
    def test_every_token_is_predicted_once(self, form: str) -> None:
        """All but the first, in order, with an end after sentences whose tokenizer marks nothing."""
        text, tokenizer = (
            Text.from_lines([" ".join(LETTERS[:size]) for size in (3, 5, 1, 7, 2)]),
            letters(form),
        )
        stream = [
            token for line in text for token in tokenizer(line).input_ids + [END] * (form == "$A")
        ]
        data = Packed(text, tokenizer, 4, causal=True)
        batches = list(data.once(tiny("gpt2"), 8))
        labels = [
            token
            for batch in batches
            for token in batch["labels"].flatten().tolist()
            if token != IGNORED
        ]
        inputs = [
            token for b in batches for token in b["input_ids"][b["attention_mask"].bool()].tolist()
        ]
        assert (inputs, labels) == (stream, stream[1:])
        assert {batch["input_ids"].shape[1] for batch in batches} == {4}
        assert len(data) == -(-len(stream) // 4)

    def test_a_text_shorter_than_a_row(self) -> None:
        data = Packed(Text.from_lines(["a b"]), letters(), 512, causal=True)
        assert len(data) == 1 and data.length == 4

    def test_a_tokenizer_that_makes_no_tokens(self) -> None:
        mute = letters("$A", eos_token=None)
        mute.backend_tokenizer.normalizer = normalizers.Replace(Regex("."), "")
        with pytest.raises(HeadwiseError, match=r"no tokens of 'lines': give other text"):
            Packed(Text.from_lines(["a b"]), mute, 8, causal=True).once(tiny("gpt2"), 8)

    def test_hidden_tokens_differ_by_epoch_and_not_by_run(self) -> None:
        text, tokenizer = Text.from_lines([" ".join(LETTERS)] * 20), letters()
        data = Packed(text, tokenizer, 40, causal=False)
        sampler = data.sampler(80, seed=1, multiple=1)
        collate = data.collator(tiny("bert"), sampler)

        def hidden(epoch: int) -> dict[int, list[int]]:
            sampler.set_epoch(epoch)
            rows = [row for batch in sampler for row in batch if row >= 0]
            labels = collate(data.__getitems__(rows))["labels"]
            return {
                row % len(data): (label != IGNORED).nonzero().flatten().tolist()
                for row, label in zip(rows, labels, strict=True)
            }

        assert hidden(1) == hidden(1) != hidden(2)
        assert hidden(1).keys() == hidden(2).keys() == {*range(len(data))}
        batch = collate(data.__getitems__(next(iter(sampler))))
        asked = batch["labels"] != IGNORED
        assert batch["input_ids"][asked].eq(MASK).all()
        assert not batch["input_ids"][~asked].eq(MASK).any()
        assert not {*batch["labels"][asked].tolist()} & {START, END}
        assert asked.sum(1).tolist() == [
            round(0.15 * int((row > MASK).sum()))
            for row in batch["input_ids"].where(~asked, batch["labels"])
        ]

    def test_an_empty_row_asks_for_nothing(self) -> None:
        for causal, family in ((True, "gpt2"), (False, "bert")):
            data = Packed(Text.from_lines(["a b c d"]), letters(), 6, causal)
            collate = data.collator(tiny(family), data.sampler(6, 1, 1))
            batch = collate(data.__getitems__([0, -1]))
            assert (batch["labels"][0] != IGNORED).any() and (batch["labels"][1] == IGNORED).all()
            assert batch["attention_mask"][1].any()

    def test_ids_are_kept_on_disk_and_found_again(self, tmp_path: Path) -> None:
        text, tokenizer = Text.from_lines([" ".join(LETTERS)] * 3), letters()
        rows = [
            Packed(text, tokenizer, length, True, tmp_path)[0]["ids"].tolist()
            for length in (5, 9, 9)
        ]
        assert len([*tmp_path.glob("*.arrow")]) == 1
        assert rows[0] == rows[1][:5]
        assert rows[1] == rows[2]


def test_ids_of_slow_tokenizers_of_one_vocabulary_are_kept_apart(tmp_path: Path) -> None:
    """Their merges differ, so a text has other ids."""
    made = []
    for number, merge in enumerate(("a b</w>", "b a</w>")):
        vocabulary = tmp_path / "vocab.json"
        vocabulary.write_text('{"<unk>": 0, "a@@": 1, "b": 2, "ab": 3}')
        merges = tmp_path / f"merges-{number}.txt"
        merges.write_text(f"#version: 0.2\n{merge}\n")
        made.append(CTRLTokenizer(str(vocabulary), str(merges)))
    one, other = made
    text = Text.from_lines(["ab"])
    assert one.get_vocab() == other.get_vocab() and one("ab") != other("ab")
    assert key(text, one) == key(text, one) != key(text, other)
