"""CTranslate2 translates as transformers' `generate` does: the same lines from the same options."""

from __future__ import annotations

import random

import pytest
import torch

import headwise as hw
from headwise.core.errors import HeadwiseError
from headwise.core.layout import HeadMask
from headwise.core.options import Search
from headwise.models.attention.capture import keeping
from headwise.models.decoding import search_engines
from headwise.models.decoding.search_engines import refuse_engine, refuse_model
from headwise.models.decoding.translator import translate
from models.engines.pruned import (
    LINES,
    encoder_decoder,
    language_model,
    listener,
    translator,
    uneven,
)

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed (headwise[ct2])")
DRAW, WORDS = random.Random(0), sorted({word for line in LINES for word in line.split()})
TEXT = [
    "",
    *(" ".join(DRAW.choices(WORDS, k=DRAW.randint(1, 9))) for _ in range(24)),
    "漢 heads 漢",
    "\t",
]


def pushed(model, token, push):
    """The model with a token made more probable everywhere, by its last normalisation."""
    decoder, weight = model.hf.model.decoder, model.hf.lm_head.weight[token]
    last = getattr(decoder, "layer_norm", None) or decoder.layers[-1].final_layer_norm
    with torch.no_grad():
        last.bias += push * weight / weight.square().sum()
    return model


def both(model, exactly=None, **search):
    """Lines and tokens by `generate` and by CTranslate2."""
    options = Search(batch=8, **search)
    translators = [model.translator(engine) for engine in ("transformers", "ct2")]
    results = [translate(each, TEXT, options, exactly=exactly) for each in translators]
    assert [cost["engine"].split()[0] for _, cost in results] == ["transformers", "ctranslate2"]
    return [(lines, cost["tokens"]) for lines, cost in results]


@pytest.mark.parametrize(
    ("norm", "push", "search"),
    [
        ("post", 0, {"beam": 4}),
        ("post", 3, {"beam": 4}),
        ("post", 3, {"beam": 1}),
        ("pre", 3, {"beam": 5, "length_penalty": 0.0}),
        ("pre", 3, {"beam": 1}),
    ],
)
def test_lines_are_those_of_generate(norm, push, search):
    """Of models with uneven layers and an empty one; with a push, many translations end before they are cut."""
    small = uneven(translator(norm))
    expected, got = both(pushed(small, small.tokenizer.eos_token_id, push), **search)
    assert got == expected and expected[0][0] == expected[0][-1] == "" and len(set(expected[0])) > 4


@pytest.mark.parametrize("family", ["bart", "t5", "mt5"])
def test_lines_of_other_families(family):
    model = encoder_decoder(family)
    model.hf.generation_config.forced_eos_token_id = (
        model.tokenizer.eos_token_id if family == "bart" else None
    )
    (expected, _), (got, _) = both(uneven(model), beam=1)
    assert got == expected and len(set(expected)) > 4


def test_the_unknown_word_is_never_written():
    model = translator("pre")
    unknown = model.tokenizer.unk_token_id
    pushed(model, unknown, 30)
    with torch.no_grad():
        logits = model.hf(torch.tensor([[5, 6, 1]]), decoder_input_ids=torch.tensor([[2]])).logits
    assert int(logits.argmax()) == unknown
    for engine in ("transformers", "ct2"):
        (written,) = model.translator(engine).write([[5, 6, 1]], Search(beam=2), 9, False)
        assert written and unknown not in written


def test_speed_is_measured_on_equally_many_tokens():
    small = uneven(translator("pre"))
    pushed(small, small.tokenizer.eos_token_id, 9)
    expected, got = both(small, exactly=4, beam=2)
    assert expected[1] == got[1] == 4 * 25


def test_the_model_translates_by_name(monkeypatch):
    small = uneven(translator("post"))
    assert small.translate(TEXT, beam=2, engine="ct2") == small.translate(TEXT, beam=2)
    with pytest.raises(
        HeadwiseError, match=r"'engine' is 'marian', which .* 'transformers' or 'ct2'"
    ):
        small.translate(TEXT, engine="marian")
    monkeypatch.setattr(search_engines, "find_spec", lambda name: None)
    with pytest.raises(
        HeadwiseError,
        match=r"^Translating with ct2 needs ctranslate2: pip install 'headwise\[ct2\]'.$",
    ):
        small.translate(TEXT, engine="ct2")


def test_what_ct2_would_do_otherwise_is_refused():
    model = translator("pre")
    with (
        keeping(model.hf, model.discovery, HeadMask.full(model.heads)),
        pytest.raises(HeadwiseError, match="leave the block"),
    ):
        model.translate(TEXT, engine="ct2")
    model.hf.generation_config.forced_eos_token_id = 7
    with pytest.raises(HeadwiseError, match="forced_eos_token_id"):
        model.translate(TEXT, engine="ct2")
    model.hf.generation_config.no_repeat_ngram_size = 3
    with pytest.raises(HeadwiseError, match="no_repeat_ngram_size"):
        model.translate(TEXT, engine="ct2")
    with pytest.raises(HeadwiseError, match="on cuda, but headwise runs CTranslate2 on the CPU"):
        refuse_engine("ct2", "cuda")
    refuse_engine("transformers", "cuda")
    refuse_model("transformers", model.hf, model.tokenizer, model.discovery)


@pytest.mark.parametrize(
    "model", [listener, lambda: language_model("llama")], ids=["whisper", "llama"]
)
def test_models_that_do_not_translate_are_refused(model):
    with pytest.raises(
        HeadwiseError,
        match=r"cannot be translated with ct2: a (whisper|llama) does not translate text",
    ):
        model().translator("ct2")


def test_evaluation_says_the_engine():
    model = translator("post")
    text = hw.ParallelText.from_pairs(zip(LINES, LINES[::-1], strict=True))
    tables = [
        hw.evaluate(model, text, search=hw.Search(beam=2, engine=engine)).table
        for engine in ("transformers", "ct2")
    ]
    bleu = [table.set_index("measure").loc["bleu"] for table in tables]
    assert bleu[0]["value"] == bleu[1]["value"] and bleu[1]["made"].split(", ")[-1].startswith(
        "ctranslate2 4."
    )
    with pytest.raises(
        HeadwiseError, match="llama was given a search, but is a causal language model"
    ):
        hw.evaluate(
            language_model("llama"), hw.Text.from_lines(LINES), search=hw.Search(engine="ct2")
        )
