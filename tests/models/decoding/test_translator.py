"""Decoding: every sentence keeps its place, and nothing is made of nothing."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from transformers import MarianMTModel, PreTrainedTokenizerBase

import headwise as hw
from headwise.core.options import Search
from headwise.faces.cli.terminal import show_quality
from headwise.models.decoding.translator import Generate, translate
from headwise.models.evaluation.quality import evaluation_forecast
from headwise.models.model import Model
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


LONG = " ".join([*SENTENCES] * 4)


@pytest.fixture
def short_model(
    tiny_marian: Callable[..., MarianMTModel], tokenizer: PreTrainedTokenizerBase
) -> Model:
    """20 positions, of which 8 stay free."""
    return hw.Model(tiny_marian(max_position_embeddings=20), tokenizer, "short")


def test_what_is_cut_is_counted_and_the_lines_keep_their_order(short_model: Model) -> None:
    """Plain transformers' tokenizer says which are longer, and what is left of them."""
    sentences = [SENTENCES[1], LONG, "", SENTENCES[3], LONG]
    limit = 20 - 8
    tokenizer = short_model.tokenizer
    ids = tokenizer(sentences)["input_ids"]
    assert [len(row) > limit for row in ids] == [False, True, False, False, True]
    beginning = tokenizer.decode(ids[1][: limit - 1])
    with pytest.warns(UserWarning, match=r"2 of 5 .* model's 12 tokens.*number 2, 5"):
        lines = short_model.translate(sentences, beam=1)
    assert lines == short_model.translate(
        [*sentences[:1], beginning, "", sentences[3], beginning], beam=1
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".* longer than")
        short_model.translate(SENTENCES[1:2])


def test_evaluate_says_what_was_not_read(short_model: Model, tmp_path: Path) -> None:
    pairs = [(line, line) for line in [SENTENCES[1], LONG, "", SENTENCES[3]]]
    with pytest.warns(UserWarning, match="1 of 3 sentence is longer"):
        found = hw.evaluate(short_model, hw.ParallelText.from_pairs(pairs), search=Search(beam=1))
    found.save(tmp_path)
    signature = json.loads((tmp_path / "quality.json").read_text())
    assert signature["left_out"] == "1 blank, the ends of 1 longer than 12 tokens"
    assert found.notes() == [f"Left out of the text: {signature['left_out']}."]
    console = Console(file=io.StringIO())
    show_quality(console, found)
    assert "Left out of the text: 1 blank" in console.file.getvalue()  # type: ignore[attr-defined]
    forecast = evaluation_forecast([short_model], hw.ParallelText.from_pairs(pairs))
    assert signature["left_out"] in "\n".join(forecast.lines())
