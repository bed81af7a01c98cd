"""Words lost without a head: a slow twin, words of pieces, planted words, chance, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import headwise as hw
from headwise.core.heads import Head
from headwise.core.layout import HeadMask
from headwise.core.tables import WORDS
from headwise.models.attention.capture import keeping
from headwise.models.tasks.objective import asked_places, on_device, predict
from headwise.roles.behaviour import FALSE_WORDS
from headwise.roles.lost_words import (
    LostWords,
    lost_words,
    of_batch,
    said_words,
    table_of,
    words_of_pieces,
)
from models.tasks.askers import asker, embedder, lines, pairs
from refusals import refuses

HEADS = [Head("cross", 0, number) for number in range(8)]


class Numbers:
    """A tokenizer whose pieces are words: w0, w1 …"""

    all_special_ids = (0,)

    def decode(self, ids: list[int], **_: Any) -> str:
        return " ".join(f"w{number}" for number in ids)

    def convert_ids_to_tokens(self, number: int) -> str:
        return "</s>" if number == 0 else f"w{number}"


def by_bytes() -> Any:
    """A tokenizer whose pieces are bytes: a letter such as é has two."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={one: n for n, one in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=made)


@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_against_a_slow_twin(family: str) -> None:
    """The tokenizers of the tests have letters between blanks. A word counts once in a sentence, where it is said first."""
    model = asker(family)
    text: Any = pairs(7) if family == "marian" else lines(7)
    found, _ = said_words(model, model.task.batches(text))
    twin = []
    with torch.no_grad():
        for batch in model.task.batches(text):
            tensors = on_device(model.hf, batch)
            places = asked_places(tensors["labels"])
            gold = tensors["labels"][places].tolist()
            whole = predict(model.hf, tensors)[places].argmax(-1).tolist()
            first: dict[tuple[int, int], int] = {}
            for place, (row, piece, said) in enumerate(
                zip(places[0].tolist(), gold, whole, strict=True)
            ):
                if piece == said:
                    first.setdefault((row, piece), place)
            lost = []
            for head in model.heads:
                mask = HeadMask.full(model.heads).without([head])
                with keeping(model.hf, model.discovery, mask):
                    now = predict(model.hf, tensors)[places].argmax(-1).tolist()
                lost.append([now[place] != gold[place] for place in first.values()])
            twin.append(np.array(lost, dtype=int))
    expected = np.concatenate(twin, axis=1)
    assert sum(len(one.lost) for one in found) == expected.shape[1] > 0
    counts = sum(np.sum(list(one.lost.values()), 0) for one in found if one.lost)
    assert counts.tolist() == expected.sum(1).tolist() and counts.any()


def test_hidden_words_of_a_masked_model_stand_in_their_sentence() -> None:
    """Labels stand where pieces are hidden; of a word of two pieces both must be."""
    ids = torch.tensor([[5, 1, 6, 1, 1]])
    labels = torch.tensor([[-100, 7, -100, 8, 9]])
    places = asked_places(labels)
    batch: Any = SimpleNamespace(
        tensors={"input_ids": ids, "labels": labels}, places=places, there={"source": ids > 0}
    )
    (said,) = of_batch(Pieces(), batch, np.array([7, 8, 9]), np.array([[7, 8, 8]]))
    assert said.pieces == [5, 7, 6, 8, 9]
    assert {word: lost.tolist() for word, lost in said.lost.items()} == {
        "o": [False],
        "</s>": [True],
    }


def texts(seed: int, chances: dict[tuple[int, int], float], rate: Any = 0.05) -> pd.DataFrame:
    """The table of 200 made-up sentences of 25 words by Zipf's law, each lost with each head at a rate, but for the chances
    of (head, word)."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(200):
        words = 1 + np.minimum(draw.zipf(1.3, 25), 200)
        chance = np.broadcast_to(np.asarray(rate, dtype=float), (len(HEADS), 25)).copy()
        for (head, word), planted in chances.items():
            chance[head, words == word] = planted
        others = np.where(draw.random(chance.shape) < chance, 999, words)
        labels = torch.from_numpy(words)[None]
        batch: Any = SimpleNamespace(
            tensors={"labels": labels, "decoder_input_ids": labels}, places=asked_places(labels)
        )
        found += of_batch(Numbers(), batch, words, others)
    return table_of(HEADS, found, np.arange(len(found)), Numbers(), seed)


def test_a_planted_word_is_found_and_confirmed() -> None:
    table = texts(0, {(2, 3): 0.7, (0, 5): 0.6})
    assert list(table.columns) == list(WORDS.names)
    sure = table[table["p"] < FALSE_WORDS]
    assert {*zip(sure["head"], sure["word"], strict=True)} == {(2, "w3"), (0, "w5")}
    first = table.iloc[0]
    assert (first["head"], first["word"], first["instead"]) == (2, "w3", "w999")
    assert first["lost"] / first["units"] == pytest.approx(first["value"])
    assert first["low"] < 0.7 < first["high"] and 0.02 < first["others"] < 0.09
    assert first["lost"] == first["times"] and first["example"].endswith("w3")


@pytest.mark.parametrize(
    ("chances", "rate"),
    [
        ({}, 0.05),
        ({(head, 3): 0.5 for head in range(len(HEADS))}, 0.05),  # a word that every head loses
        ({}, np.array([[0.3], *[[0.02]] * 7])),  # a head that loses all words alike
    ],
    ids=["chance", "fragile word", "strong head"],
)
def test_what_confirms_nothing(chances: Any, rate: Any) -> None:
    """Of 20 texts at most four have a confirmed row: the 99 % quantile of Binomial(20, 0.05)."""
    found = [bool((texts(seed, chances, rate)["p"] < FALSE_WORDS).any()) for seed in range(20)]
    assert sum(found) <= 4


class Pieces:
    """A tokenizer whose pieces are written down: ▁ begins a word."""

    all_special_ids = (9,)
    texts = ("▁Ve", "lho", ",", "▁", "carro", "▁não", "▁a", "▁o", "x", "</s>")

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(self.texts[number] for number in ids).replace("▁", " ").strip()

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.texts[number]


def test_words_of_pieces() -> None:
    """Signs are words, a lone ▁ belongs to the word behind it or to none, the end is a word."""
    assert words_of_pieces(Pieces(), [0, 1, 2, 5, 7, 8, 9]) == [
        ("velho", [0, 1]),
        (",", [2]),
        ("não", [3]),
        ("ox", [4, 5]),
        ("</s>", [6]),
    ]
    assert words_of_pieces(Pieces(), [5, 3, 4]) == [("não", [0]), ("carro", [1, 2])]


def test_words_of_bytes() -> None:
    """A letter of several pieces needs all of them; a line break is no part of a word; Hindi keeps its vowels."""
    tokenizer = by_bytes()

    def words(text: str) -> list[tuple[str, int]]:
        found = words_of_pieces(tokenizer, tokenizer(text).input_ids)
        return [(word, len(places)) for word, places in found]

    assert words("café au") == [("café", 5), ("au", 2)]
    assert words("ab\ncd, e") == [("ab", 2), ("cd", 2), (",", 1), ("e", 1)]
    assert words("हिन्दी") == [("हिन्दी", 18)]


def test_text_of_the_models_own_and_what_is_refused() -> None:
    """One-sided text gets the model's own translations. A line that stands twice counts once."""
    model = asker()
    result = lost_words(model, lines(60))
    assert "own translations" in result.lines()[0] and result.signature["words"] > 0
    assert {*result.files()} == {*LostWords.FILES}
    twice = hw.ParallelText.from_pairs([*pairs(30), *pairs(30)])
    assert lost_words(model, twice).signature["sentences"] <= 30
    refuses(lambda: lost_words(model, "file.txt"), "There is no file 'file.txt'")
    refuses(lambda: lost_words(model, lines(5)), "20 different sentences")
    refuses(lambda: lost_words(embedder(), lines(30)), "predicts no words")


def test_the_tests_of_the_heads_are_seen_to_advance() -> None:
    """They come after the reading, and take a while where heads lose many words: each head is reported."""
    seen: list[tuple[float, str]] = []
    model = asker("gpt2")
    lost_words(model, lines(30), progress=lambda share, what: seen.append((share, what)))
    shares = [share for share, _ in seen]
    assert shares == sorted(shares)
    assert [what for _, what in seen].count("tests of lost words") == model.heads.total
