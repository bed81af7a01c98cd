"""Token batches: every pair once, few shapes, and what a model is given."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from transformers import M2M100ForConditionalGeneration, MarianMTModel, PreTrainedTokenizerBase

from headwise.core.errors import HeadwiseError
from headwise.data.text import ParallelText
from headwise.models.token_rows import FEWEST_TOKENS, IGNORED, padded
from headwise.models.training.loss import summed_loss
from headwise.models.training.token_batches import (
    Collator,
    Encoded,
    TokenBatches,
    batch_shapes,
    batches,
    rows_of_like_length,
)
from headwise.models.training.tokenizer import learn_subwords

PAD, END, START = 0, 1, 2
# Draws that are too short for a batch are left out, at times most of the first ones.
quickly = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)
length_lists = st.lists(st.integers(1, 60), min_size=1, max_size=300)
sizes = st.sampled_from([60, 64, 97, 240, 1000, 2520, 5040])


def lengths_only(longest: list[int]) -> Any:
    """What a sampler needs of encoded text."""

    class Data:
        def __init__(self) -> None:
            self.longest = np.array(longest)

        def __len__(self) -> int:
            return len(self.longest)

    return Data()


def random_lengths(count: int, seed: int = 0) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(n) for n in np.clip(random.gamma(4, 4, count) + 2, 2, 60)]


def numbers(batch: list[int]) -> list[int]:
    return [i for i in batch if i >= 0]


class TestTokenBatches:
    @quickly
    @given(length_lists, sizes, st.integers(0, 5))
    def test_every_pair_comes_once_in_a_shape_that_holds_it(
        self, longest: list[int], tokens: int, seed: int
    ) -> None:
        assume(sum(longest) >= tokens)
        sampler = TokenBatches(lengths_only(longest), tokens, seed)
        length_of = {rows: length for length, rows in sampler.shapes}
        top = max(longest)
        found = list(sampler)
        assert len(found) == len(sampler)
        assert sorted(i for batch in found for i in numbers(batch)) == list(range(len(longest)))
        for batch in found:
            length = length_of[len(batch)]
            assert all(longest[i] <= length for i in numbers(batch))
            positions = length * len(batch)
            assert positions == tokens or (length == top and tokens - top < positions <= tokens)
        assert sum(-1 in batch for batch in found) <= 1

    @quickly
    @given(length_lists, sizes)
    def test_shapes_are_few_and_differ_in_their_rows(self, longest: list[int], tokens: int) -> None:
        found = batch_shapes(np.array(longest), tokens)
        lengths, rows = zip(*found, strict=True)
        assert all(a < b for a, b in pairwise(lengths)) and all(a > b for a, b in pairwise(rows))
        assert all(tokens % length == 0 for length in lengths[:-1])
        assert lengths[-1] == max(longest), (
            "no position beyond the longest pair: the model may have none there"
        )
        edges = [0, *lengths]
        for (low, high), count in zip(pairwise(edges[:-1]), rows[:-1], strict=True):
            assert sum(low < n <= high for n in longest) >= count

    def test_real_text_pads_little(self) -> None:
        longest = random_lengths(30_000)
        sampler = TokenBatches(lengths_only(longest), 5040, seed=1)
        assert len(sampler.shapes) <= 20
        assert sum(longest) / (len(sampler) * 5040) > 0.94

    def test_the_order_is_that_of_seed_and_epoch(self) -> None:
        def order(seed: int, epoch: int) -> list[list[int]]:
            sampler = TokenBatches(lengths_only(random_lengths(2000)), 1260, seed)
            sampler.set_epoch(epoch)
            return list(sampler)

        assert order(1, 0) == order(1, 0) and order(1, 3) == order(1, 3)
        assert order(1, 0) != order(1, 1) != order(2, 1)
        together = [Counter(map(frozenset, order(1, epoch))) for epoch in (0, 1)]
        assert sum((together[0] & together[1]).values()) < 3, (
            "pairs are put together again, not only batches reordered"
        )

    def test_batches_of_all_lengths_are_mixed(self) -> None:
        data = lengths_only(random_lengths(5000))
        rows = [len(batch) for batch in TokenBatches(data, 1260, seed=0)]
        half = len(rows) // 2
        assert np.mean(rows[:half]) == pytest.approx(np.mean(rows[half:]), rel=0.15)

    def test_what_is_left_of_a_rung_moves_up(self) -> None:
        """Ten pairs of length 3 and rows of 4: two wait for the next rung, length 6 with rows of 2, and go first."""
        sampler = TokenBatches(lengths_only([3] * 10 + [6] * 3), 12, seed=0)
        assert sampler.shapes == [(3, 4), (6, 2)]
        found = sorted((sorted(batch) for batch in sampler), key=len)
        moved = [batch for batch in found if len(batch) == 2 and max(batch) < 10]
        assert len(moved) == 1 and sum(-1 in batch for batch in found) == 1

    @quickly
    @given(st.integers(2, 6), st.integers(0, 3))
    def test_groups_for_several_processes_are_whole(self, multiple: int, epoch: int) -> None:
        longest = random_lengths(1500)
        sampler = TokenBatches(lengths_only(longest), 630, seed=0, multiple=multiple)
        sampler.set_epoch(epoch)
        found = list(sampler)
        used = Counter(i for batch in found for i in numbers(batch))
        assert len(found) == len(sampler) and len(found) % multiple == 0
        assert set(used.values()) == {1}
        assert len(TokenBatches(lengths_only(longest), 630, 0)) - len(found) < multiple

    @pytest.mark.parametrize("multiple", [1, 2, 5])
    def test_batches_of_a_text_shorter_than_one_are_smaller(self, multiple: int) -> None:
        """Every epoch has one update, of all rows but those that fill no batch."""
        longest = random_lengths(40)
        sampler = TokenBatches(lengths_only(longest), 10**6, seed=0, multiple=multiple)
        found = list(sampler)
        assert len(found) == len(sampler) and len(found) % multiple == 0 and found
        used = Counter(row for batch in found for row in numbers(batch))
        assert set(used.values()) == {1} and len(used) > 20
        for batch in found:
            assert sum(longest[row] for row in numbers(batch)) <= sum(longest) / multiple

    def test_a_text_without_a_row_for_every_batch_is_refused(self) -> None:
        with pytest.raises(HeadwiseError, match=r"12 tokens in 3 rows, fewer than 4 batches"):
            TokenBatches(lengths_only([4, 4, 4]), 1000, seed=0, multiple=4)
        assert len(TokenBatches(lengths_only([4] * 12), 12, seed=0, multiple=4)) == 4

    def test_a_batch_too_small_for_the_longest_pair_is_refused(self) -> None:
        with pytest.raises(HeadwiseError, match=r"batch of 12 tokens cannot hold the longest row"):
            TokenBatches(lengths_only([4, 13, 5]), 12, seed=0)


class TestRowsOfLikeLength:
    @quickly
    @given(length_lists, sizes)
    def test_every_row_comes_once_shortest_first(self, longest: list[int], tokens: int) -> None:
        found = list(rows_of_like_length(np.array(longest), tokens))
        assert sorted(row for batch in found for row in batch) == list(range(len(longest)))
        assert all(batch == sorted(batch) for batch in found)
        ends = [([longest[row] for row in batch]) for batch in found]
        assert all(max(one) <= min(other) for one, other in pairwise(ends))
        assert all(len(one) == 1 or max(one) * len(one) <= tokens for one in ends)

    def test_a_short_text_has_little_padding(self) -> None:
        """As one batch of 4096 positions, three of five would be padding."""
        longest = np.array(random_lengths(150))
        found = list(rows_of_like_length(longest, 4096))
        positions = sum(len(batch) * int(longest[batch].max()) for batch in found)
        assert longest.sum() / positions > 0.8
        # Each batch has a price of its own, and a sentence alone has no neighbour.
        assert len(found) <= 1 + longest.sum() / FEWEST_TOKENS and all(map(len, found))
        assert min(map(len, found)) > 1

    def test_few_tokens_are_one_batch(self) -> None:
        assert list(rows_of_like_length(np.array([40, 2, 30, 1]), 4096)) == [[0, 1, 2, 3]]


class TestCollator:
    tokenizer: Any = SimpleNamespace(pad_token_id=PAD)

    def test_padding_labels_and_decoder_inputs(self) -> None:
        pairs = [
            {"source": [5, 6, END], "target": [7, END]},
            {"source": [8, END], "target": [9, 4, 9, END]},
        ]
        found = {
            name: t.tolist() for name, t in Collator(self.tokenizer, START, [(5, 2)])(pairs).items()
        }
        assert found == {
            "input_ids": [[5, 6, END, PAD, PAD], [8, END, PAD, PAD, PAD]],
            "attention_mask": [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]],
            "decoder_input_ids": [[START, 7, END, PAD, PAD], [START, 9, 4, 9, END]],
            "labels": [[7, END, IGNORED, IGNORED, IGNORED], [9, 4, 9, END, IGNORED]],
        }

    def test_without_a_shape_each_side_is_as_long_as_its_longest(self) -> None:
        pairs = [
            {"source": [5, 6, END], "target": [7, END]},
            {"source": [8, END], "target": [9, 4, 9, END]},
        ]
        batch = Collator(self.tokenizer, START)(pairs)
        assert batch["input_ids"].shape == (2, 3) and batch["labels"].shape == (2, 4)

    def test_a_sentence_that_holds_the_padding_id_is_still_seen(self) -> None:
        batch = Collator(self.tokenizer, START)([{"source": [5, PAD, 6, END], "target": [7, END]}])
        assert batch["attention_mask"].tolist() == [[1, 1, 1, 1]]

    @quickly
    @given(st.lists(st.lists(st.integers(3, 99), max_size=6), min_size=1, max_size=5))
    def test_padded_rows_begin_with_their_ids(self, rows: list[list[int]]) -> None:
        out = padded(rows, -7, 6)
        assert out.shape == (len(rows), 6) and out.dtype == torch.long
        assert [row[: len(ids)] for row, ids in zip(out.tolist(), rows, strict=True)] == rows
        assert int((out == -7).sum()) == 6 * len(rows) - sum(map(len, rows))

    @pytest.mark.parametrize("family", ["tiny_marian", "tiny_m2m100"])
    def test_empty_rows_and_padding_do_not_change_the_loss(
        self, family: str, request: pytest.FixtureRequest
    ) -> None:
        build: Callable[..., MarianMTModel | M2M100ForConditionalGeneration] = (
            request.getfixturevalue(family)
        )
        model = build()
        pairs = [
            {"source": [5, 6, 9, 1], "target": [7, 8, 1]},
            {"source": [8, 1], "target": [9, 4, 9, 1]},
        ]
        empty: dict[str, list[int]] = {"source": [], "target": []}

        def loss(rows: list[dict[str, list[int]]], length: int) -> tuple[float, torch.Tensor]:
            batch = Collator(
                self.tokenizer, model.config.decoder_start_token_id, [(length, len(rows))]
            )(rows)
            labels = batch.pop("labels")
            model.zero_grad()
            states = model.base_model(**batch, use_cache=False).last_hidden_state
            total = summed_loss(states, model.get_output_embeddings().weight, None, labels, 0.1)
            total.backward()
            return total.item(), model.get_encoder().layers[0].self_attn.q_proj.weight.grad.clone()

        plain, roomy = loss(pairs, 4), loss([*pairs, empty, empty], 9)
        assert plain[0] == pytest.approx(roomy[0], rel=1e-5)
        torch.testing.assert_close(plain[1], roomy[1], rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def text() -> ParallelText:
    words = ["cat", "dog", "sleeps", "runs", "red", "house", "tree", "sings", "a", "the"]
    random = np.random.default_rng(3)

    def sentence() -> str:
        return " ".join(random.choice(words, random.integers(1, 12))) + "."

    return ParallelText.from_pairs([(sentence(), sentence()) for _ in range(400)])


@pytest.fixture(scope="module")
def tokenizer(text: ParallelText) -> PreTrainedTokenizerBase:
    return learn_subwords((side for pair in text for side in pair), 60)


class TestEncoded:
    def test_ids_are_the_tokenizers_and_longer_pairs_are_counted(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        data = Encoded(text, tokenizer, max_length=12)
        expected = [
            (tokenizer(source).input_ids, tokenizer(target).input_ids) for source, target in text
        ]
        short = [i for i, pair in enumerate(expected) if max(map(len, pair)) <= 12]
        assert data.rows.tolist() == short and 0 < data.dropped == len(text) - len(data)
        assert [(row["source"], row["target"]) for row in data.__getitems__(range(len(data)))] == [
            expected[i] for i in short
        ]
        assert data.longest.tolist() == [max(map(len, expected[i])) for i in short]
        assert data[3] == {"source": expected[short[3]][0], "target": expected[short[3]][1]}

    def test_it_shows_no_bar(
        self,
        text: ParallelText,
        tokenizer: PreTrainedTokenizerBase,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        hidden = are_progress_bars_disabled()
        enable_progress_bars()
        try:
            Encoded(text, tokenizer, max_length=12)
            assert not are_progress_bars_disabled()
        finally:
            (disable_progress_bars if hidden else enable_progress_bars)()
        assert capfd.readouterr() == ("", "")

    def test_empty_rows_stand_where_they_were_asked_for(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        data = Encoded(text, tokenizer, max_length=50)
        rows = data.__getitems__([4, -1, 2])
        assert rows == [data[4], {"source": [], "target": []}, data[2]]

    def test_a_folder_keeps_the_ids_on_disk(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
    ) -> None:
        on_disk, in_memory = (
            Encoded(text, tokenizer, 50, tmp_path / "ids"),
            Encoded(text, tokenizer, 50),
        )
        (file,) = (tmp_path / "ids").glob("*.arrow")
        assert file.stat().st_size > 1000
        assert all(on_disk[i] == in_memory[i] for i in range(len(text)))

    def test_damaged_ids_in_a_folder_are_made_again(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
    ) -> None:
        """One bit of an id: without a sum, training would read another token."""
        first = Encoded(text, tokenizer, 50)
        Encoded(text, tokenizer, 50, tmp_path)
        (file,) = tmp_path.glob("*.arrow")
        whole = file.read_bytes()
        number = first[0]["source"][0].to_bytes(4, "little")
        damaged = bytearray(whole)
        damaged[whole.rindex(number)] ^= 1
        file.write_bytes(damaged)
        again = Encoded(text, tokenizer, 50, tmp_path)
        assert [again[i] for i in range(len(text))] == [first[i] for i in range(len(text))]
        assert file.read_bytes() == whole

    def test_ids_in_a_folder_are_found_again_by_the_same_text_and_pieces_only(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
    ) -> None:
        first = Encoded(text, tokenizer, 50, tmp_path)
        (file,) = tmp_path.glob("*.arrow")
        before = file.stat().st_mtime_ns
        tokenizer(
            ["a house"] * 2, truncation=True, max_length=2, padding=True
        )  # leaves its mark on the tokenizer
        again = Encoded(text, tokenizer, 12, tmp_path)
        assert [file] == list(tmp_path.glob("*.arrow")) and file.stat().st_mtime_ns == before
        assert again.rows.tolist() == [row for row, size in enumerate(first.longest) if size <= 12]
        assert again[0] == first[int(again.rows[0])]
        other = learn_subwords((side for pair in text for side in pair), 40)
        assert Encoded(text, other, 50, tmp_path)[0]["source"] == other(text[0][0]).input_ids
        assert (
            Encoded(text.head(7), tokenizer, 50, tmp_path).longest.tolist()
            == first.longest[:7].tolist()
        )
        assert len(list(tmp_path.glob("*.arrow"))) == 3

    def test_all_pairs_too_long_is_refused(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        with pytest.raises(HeadwiseError, match="400 pairs are longer than max_length = 1 tokens"):
            Encoded(text, tokenizer, max_length=1)


class TestBatches:
    def test_the_whole_text_once_with_its_places(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        data = Encoded(text, tokenizer, max_length=12)
        found: Iterator[dict[str, torch.Tensor]] = batches(data, START, tokens=240)
        places = []
        for batch in found:
            assert batch["input_ids"].numel() <= 240 and len(batch["rows"]) == len(batch["labels"])
            for place, ids, mask in zip(
                batch["rows"].tolist(), batch["input_ids"], batch["attention_mask"], strict=True
            ):
                kept = ids[mask.bool()].tolist()
                assert kept == ([] if place < 0 else tokenizer(text[place][0]).input_ids)
                places.append(place)
        assert sorted(place for place in places if place >= 0) == data.rows.tolist()

    def test_fewer_tokens_than_the_longest_sentence_still_work(
        self, text: ParallelText, tokenizer: PreTrainedTokenizerBase
    ) -> None:
        data = Encoded(text, tokenizer, max_length=50)
        assert sum(
            int((batch["rows"] >= 0).sum()) for batch in batches(data, START, tokens=3)
        ) == len(data)
