"""Words lost without a head: a slow twin, words of pieces, planted words, chance, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import headwise as hw
from headwise.attention import keeping
from headwise.heads import Head, HeadMask
from headwise.roles.lost_words import (
    ERROR,
    WORDS,
    Said,
    lost_words,
    rows_of,
    said_words,
    words_of_pieces,
)
from headwise.tasks.objective import asked_places, on_device, predict
from refusals import refuses
from tasks.askers import asker, embedder, lines, pairs

HEADS = [Head("cross", 0, number) for number in range(4)]


@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_against_a_slow_twin(family: str) -> None:
    """Every token a word of its own (the tokenizers of the tests have letters): whole forwards, head by head."""
    model = asker(family)
    text: Any = pairs(7) if family == "marian" else lines(7)
    found = said_words(model, model.task.batches(text))
    lost = {head: 0 for head in model.heads}
    said = 0
    with torch.no_grad():
        for batch in model.task.batches(text):
            tensors = on_device(model.hf, batch)
            places = asked_places(tensors["labels"])
            gold = tensors["labels"][places]
            right = predict(model.hf, tensors)[places].argmax(-1) == gold
            said += len({*zip(places[0][right].tolist(), gold[right].tolist(), strict=True)})
            for head in model.heads:
                mask = HeadMask.full(model.heads).without([head])
                with keeping(model.hf, model.discovery, mask):
                    wrong = predict(model.hf, tensors)[places].argmax(-1) != gold
                of_both = zip(
                    places[0][right & wrong].tolist(), gold[right & wrong].tolist(), strict=True
                )
                lost[head] += len({*of_both})
    assert sum(len(one.lost) for one in found) == said > 0
    counts = sum(np.sum(list(one.lost.values()), 0) for one in found if one.lost)
    assert counts.tolist() == list(lost.values()) and counts.any()


def sentences(count: int, seed: int, chances: dict[tuple[int, str], float]) -> list[Said]:
    """Made-up sentences of ten of twenty words, each lost with each head in one of 20, but for the chances given."""
    draw = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        said = Said({}, {}, {})
        for number in draw.choice(20, 10, replace=False):
            word = f"w{number}"
            chance = [chances.get((head, word), 0.05) for head in range(len(HEADS))]
            said.lost[word] = draw.random(len(HEADS)) < chance
            said.before[word] = f"… {word}"
            for head in np.nonzero(said.lost[word])[0]:
                said.instead[int(head), word] = "other"
        found.append(said)
    return found


def test_a_planted_word_is_found_and_confirmed() -> None:
    table = rows_of(HEADS, sentences(120, 0, {(2, "w3"): 0.7, (0, "w5"): 0.5}), 0)
    assert list(table.columns) == list(WORDS)
    sure = table[table["p"] < ERROR]
    assert {*zip(sure["head"], sure["word"], strict=True)} == {(2, "w3"), (0, "w5")}
    first = table.iloc[0]
    assert (first["head"], first["word"], first["instead"]) == (2, "w3", "other")
    assert first["lost"] / first["units"] == pytest.approx(first["value"])
    assert first["low"] < 0.7 < first["high"] and 0.02 < first["others"] < 0.09
    assert 20 < first["units"] < 40 and first["lost"] <= first["times"]


def test_chance_confirms_nothing() -> None:
    """200 texts in which no head loses a word more often than others: a row is confirmed in at most 5 % of them."""
    texts = (rows_of(HEADS, sentences(60, seed, {}), seed) for seed in range(200))
    assert (
        sum((table["p"] < ERROR).any() for table in texts) <= 18
    )  # 99 % quantile of Binomial(200, 0.05)


class Pieces:
    """A tokenizer whose pieces are written down: ▁ begins a word."""

    all_special_ids = (9,)
    texts = ("▁Ve", "lho", ",", "▁", "carro", "▁não", "##", "▁o", "x", "</s>")

    def decode(self, ids: list[int]) -> str:
        return "".join(self.texts[number] for number in ids).replace("▁", " ").strip()

    def convert_ids_to_tokens(self, number: int) -> str:
        return self.texts[number]


def test_words_of_pieces() -> None:
    """Commas are words, a lone ▁ belongs to the word after it or to none, the end is a word."""
    ids = [0, 1, 2, 5, 7, 4, 9]
    assert words_of_pieces(Pieces(), ids, range(7)) == [
        ("velho", [0, 1]),
        (",", [2]),
        ("não", [3]),
        ("ocarro", [4, 5]),
        ("</s>", [6]),
    ]
    assert words_of_pieces(Pieces(), [0, 1, 4], [3, 4, 8]) == [("velho", [0, 1]), ("carro", [2])]
    assert [word for word, _ in words_of_pieces(Pieces(), [3, 4], [0, 1])] == ["carro"]


def test_text_of_the_models_own_and_what_is_refused() -> None:
    """One-sided text gets the model's own translations, of which the whole model says every word."""
    model = asker()
    result = lost_words(model, lines(5))
    assert "own translations" in result.lines()[0]
    assert {*result.files()} == {*hw.LostWords.FILES}
    refuses(lambda: lost_words(model, "file.txt"), "a str")  # type: ignore[arg-type]
    refuses(lambda: lost_words(embedder(), lines(5)), "predicts no words")
