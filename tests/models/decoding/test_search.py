"""Our search writes the rows of transformers' own loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import MarianMTModel, PreTrainedTokenizerBase

from headwise.core.options import Search
from headwise.models.attention.output import Projection
from headwise.models.decoding import search, translator
from headwise.models.decoding.search import OtherSearch, Words
from headwise.models.decoding.translator import Generate, translate
from headwise.models.training.tokenizer import learn_subwords

SENTENCES = ["the red bird sees a small house", "a bird", "the house the bird sees", "a small bird"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_subwords(SENTENCES, 50)


def by_transformers(*_: Any, **__: Any) -> Tensor:
    raise OtherSearch


def rows_of(model: Any, tokenizer: Any, asked: Search, exactly: bool = False) -> list[list[int]]:
    sources = tokenizer(SENTENCES)["input_ids"]
    return Generate(model, tokenizer).write(sources, asked, 12, exactly)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"forced_eos_token_id": 3},
    {"forced_bos_token_id": 7},
    {"suppress_tokens": [5, 6, 9], "begin_suppress_tokens": [11]},
]


@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("exactly", [False, True])
def test_rows_are_those_of_transformers(
    tiny_marian: Callable[..., MarianMTModel],
    tokenizer: PreTrainedTokenizerBase,
    beam: int,
    settings: dict[str, Any],
    exactly: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_marian()
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    # Words are far apart, and sentences end at different lengths.
    with torch.no_grad():
        model.lm_head.weight.mul_(30)
    asked = Search(beam=beam, length_penalty=0.6)
    used: list[int] = []
    ours = search.search_rows

    def counted(*args: Any, **given: Any) -> Tensor:
        rows = ours(*args, **given)
        used.append(len(rows))
        return rows

    monkeypatch.setattr(translator, "search_rows", counted)
    found = rows_of(model, tokenizer, asked, exactly)
    assert used == [len(SENTENCES)]
    monkeypatch.setattr(translator, "search_rows", by_transformers)
    assert found == rows_of(model, tokenizer, asked, exactly)


def test_settings_beyond_it_go_to_transformers(
    tiny_marian: Callable[..., MarianMTModel],
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_marian()
    model.generation_config.repetition_penalty = 1.5
    lines, _ = translate(Generate(model, tokenizer), SENTENCES, Search(beam=2))
    monkeypatch.setattr(translator, "search_rows", by_transformers)
    assert lines == translate(Generate(model, tokenizer), SENTENCES, Search(beam=2))[0]


@pytest.mark.parametrize("flat", [1.0, 0.01])
@pytest.mark.parametrize("cap", [None, 30.0])
def test_likeliest_words_are_those_of_the_whole_vocabulary(
    flat: float, cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """flat: the smaller, the more words are within the rounding of each other."""
    monkeypatch.setattr(search, "multiplies_bfloat16", lambda _: True)
    made = torch.Generator().manual_seed(0)
    weight = torch.randn(9000, 24, generator=made) * flat
    project = Projection(weight, torch.randn(9000, generator=made) * flat, cap)
    states = torch.randn(40, 24, generator=made)
    shift = torch.zeros(9000)
    shift[:50] = -torch.inf
    words_of = Words(project)
    assert words_of.rounded is not None
    for scored, whole in ((False, project(states)), (True, project(states).log_softmax(-1))):
        scores, words = words_of.likeliest(states, 6, shift, scored)
        expected = (whole + shift).topk(6)
        assert torch.equal(words, expected.indices)
        assert torch.allclose(scores, expected.values, rtol=0, atol=1e-5)


def test_a_forced_word_costs_nothing() -> None:
    project = Projection(torch.randn(30, 4), None, None)
    shift = torch.full((30,), -torch.inf)
    shift[17] = 0
    scores, words = Words(project).likeliest(torch.randn(3, 4), 2, shift, scored=True)
    assert words[:, 0].tolist() == [17] * 3 and scores[:, 0].tolist() == [0.0] * 3
