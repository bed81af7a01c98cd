"""Decoding: every sentence keeps its place, and nothing is made of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from transformers import MarianMTModel, PreTrainedTokenizerBase

from headwise.core.options import Search
from headwise.models.decoding.translator import Generate, translate
from headwise.models.training.tokenizer import learn_subwords

SENTENCES = ["the red bird sees a small house", "a bird", "the house the bird sees", "a small bird"]
BLANK = ["", " ", "\t", "\u00a0"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_subwords(SENTENCES, 50)


def counted(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sentences each call of `generate` is given."""
    given: list[int] = []
    generate = model.generate

    def counting(**options: Any) -> Any:
        given.append(len(options["input_ids"]))
        return generate(**options)

    monkeypatch.setattr(model, "generate", counting)
    return given


@pytest.mark.parametrize("exactly", [None, 4])
def test_blank_lines_stay_blank_and_are_not_decoded(
    tiny_marian: Callable[..., MarianMTModel],
    tokenizer: PreTrainedTokenizerBase,
    exactly: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, search = tiny_marian(), Search(beam=2, batch=3)
    expected, cost = translate(Generate(model, tokenizer), SENTENCES, search, exactly=exactly)
    assert all(expected)
    mixed = [BLANK[0], SENTENCES[0], BLANK[1], *SENTENCES[1:3], BLANK[2], SENTENCES[3], BLANK[3]]
    given, shares = counted(model, monkeypatch), list[float]()
    lines, again = translate(
        Generate(model, tokenizer), mixed, search, lambda share, _: shares.append(share), exactly
    )
    assert lines == ["", expected[0], "", *expected[1:3], "", expected[3], ""]
    assert given == [3, 1] and shares == [0.75, 1] and again["tokens"] == cost["tokens"]


@pytest.mark.parametrize("sentences", [[], BLANK])
def test_nothing_to_say(
    tiny_marian: Callable[..., MarianMTModel],
    tokenizer: PreTrainedTokenizerBase,
    sentences: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_marian()
    given = counted(model, monkeypatch)
    lines, cost = translate(Generate(model, tokenizer), sentences, Search())
    assert lines == [""] * len(sentences) and given == [] and cost["tokens"] == 0
